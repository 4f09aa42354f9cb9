"""Sums of products as tiled matrix products."""
