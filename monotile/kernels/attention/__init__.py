"""Softmax-weighted sums (attention), streamed along the keys."""
