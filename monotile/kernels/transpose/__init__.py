"""Copies in another order of axes."""
