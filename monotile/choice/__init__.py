"""Decisions as data: what the cost models choose between can be recorded, replayed, and stated by a test."""
