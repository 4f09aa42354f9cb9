"""Program -> Program, one pass a file; `monotile/pipeline.py` holds the order."""
