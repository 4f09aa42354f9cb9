"""Structured pruning: which channels, heads and features of a network are useless because parameters are zero."""
