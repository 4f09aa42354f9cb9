"""Algebra, constant folding, dead code."""
