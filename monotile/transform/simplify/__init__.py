"""Algebraic simplification, constant folding, copy propagation, dead-code elimination."""
