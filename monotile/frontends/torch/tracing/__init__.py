"""What PyTorch's tracer is told, or does otherwise, while a model is traced, and what is put back afterwards."""
