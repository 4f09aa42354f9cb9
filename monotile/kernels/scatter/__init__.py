"""Scatters: writes at computed positions."""
