"""One folder a kernel family: how it is matched, cut into tasks, costed, checked, and emitted for each target."""
