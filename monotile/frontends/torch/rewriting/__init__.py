"""Rewrites of an exported graph before it is lowered: decompositions, autocast, in-place updates, views, tensor subclasses."""
