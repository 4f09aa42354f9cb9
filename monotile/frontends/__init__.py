"""Front ends: from a model to a Program."""
