"""Linear layers with packed weights: integers, small floats, codebooks, N of M. Plain PyTorch, before anything is compiled."""
