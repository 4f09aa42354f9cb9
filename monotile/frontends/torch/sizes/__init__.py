"""Sizes that a call or its data decide: what a model asks of them, which there can be, and what a Program makes of them."""
