"""Repeated stretches of statements become loops."""
