"""Products of a matrix of weights with one vector or a few: the weights stream through a ring on chip that never runs dry between stages."""
