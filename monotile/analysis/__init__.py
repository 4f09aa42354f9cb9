"""Analyses of Programs. Nothing here changes a Program."""
