"""Reductions: by lanes along the terms, by columns, or over windows."""
