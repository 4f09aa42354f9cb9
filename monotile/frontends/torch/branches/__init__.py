"""Python's `if` on a tensor and other control flow that depends on data. The code is converted so that both branches are traced, or the model is traced
once for each path; the nodes between markers become a `torch.cond`."""
