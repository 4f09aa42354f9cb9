"""The networks of the table in JAX. Each module's `network(model, args, kwargs)` gives a pure function, its parameters and
its inputs; these two as PyTorch's tensors, of which `monotile.compare.xla` makes arrays."""
