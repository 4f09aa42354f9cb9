"""What a pass is, and the two values that passes work on; `monotile/pipeline.py` has the order."""
