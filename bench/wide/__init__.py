"""The wide table: many full-size networks of all domains, in two dtypes at three batches, beside eager and torch.compile."""
