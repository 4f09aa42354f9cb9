"""Passes from Program to Program, one per file; `pipeline.py` has their order."""
