"""The Plan: a Program in time and space, and its checks."""
