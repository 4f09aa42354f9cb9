"""A model by Monotile beside its rivals: each in a process of its own, checked and timed in one run."""
