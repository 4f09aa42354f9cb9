"""Analyses of Programs. Nothing here changes one."""
