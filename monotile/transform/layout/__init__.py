"""The order of axes and of dimensions in memory."""
