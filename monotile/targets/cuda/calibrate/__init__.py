"""Measures the figures of the present GPU."""
