"""Python loops with a dynamic number of iterations: detected while a model is traced, converted, and traced once. A loop over a symbolic size becomes a
`scan`, a `while` on a tensor's value a `while_loop`."""
