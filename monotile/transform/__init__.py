"""Program -> Program, one pass a file; `pipeline.py` holds the order."""
