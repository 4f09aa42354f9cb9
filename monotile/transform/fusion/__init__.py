"""Horizontal and vertical fusion of statements."""
