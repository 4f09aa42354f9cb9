"""Complex tensors inside a graph, as pairs of real tensors."""
