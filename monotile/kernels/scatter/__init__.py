"""Writes at computed positions."""
