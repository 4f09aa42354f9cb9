"""Normalisations and softmax with rows held in registers."""
