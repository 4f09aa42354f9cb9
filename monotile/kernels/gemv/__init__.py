"""Products of a weight matrix with one vector or a few: the weights stream through an on-chip ring that stays full across stages."""
