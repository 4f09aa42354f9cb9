"""From a PyTorch model to a Program."""
