"""Legalisation: passes that establish the form that the scheduler requires."""
