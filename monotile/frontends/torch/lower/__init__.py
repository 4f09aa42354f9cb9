"""The lowerings of ATen operators, by subject."""
