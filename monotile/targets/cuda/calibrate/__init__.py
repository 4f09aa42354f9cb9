"""Measuring the figures of the GPU at hand."""
