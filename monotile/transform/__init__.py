"""Passes from Program to Program, one per file; `monotile/pipeline.py` has their order."""
