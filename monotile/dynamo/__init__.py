"""torch.compile(model, backend="monotile"): each graph of Dynamo as one kernel where possible."""
