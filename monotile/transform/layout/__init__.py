"""Passes that choose the order of axes and of dimensions in memory."""
