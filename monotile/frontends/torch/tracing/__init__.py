"""Changes to PyTorch's tracer and functions while a model is traced, and restoring the model afterwards."""
