"""torch.compile(model, backend="monotile"): the graphs that Dynamo cuts a model into, each as one kernel where it can be."""
