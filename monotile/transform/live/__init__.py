"""Bounds of the call: Computes that leave out what is dead."""
