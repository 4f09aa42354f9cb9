"""What is done to an exported graph before it is lowered: decompositions, autocast, updates in place, views, tensor subclasses."""
