"""Softmax-weighted sums, streamed along the keys."""
