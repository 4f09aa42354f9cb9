"""Python's `if` on a tensor, and what else of a model's course depends on data: code converted so that both sides are traced, or the model traced
for each answer, and a `torch.cond` made of what lies between the marks."""
