"""One folder a kernel family: how it is matched, cut, costed, checked, and spelled for each target."""
