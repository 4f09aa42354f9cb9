"""Bounds from the call's sizes: Computes that skip dead elements."""
