"""Reductions: lanes along the sum, columns, windows."""
