"""Which channels, heads and features of a network its parameters' zeros make useless."""
