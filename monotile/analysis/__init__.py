"""Facts about a Program. Nothing here changes one."""
