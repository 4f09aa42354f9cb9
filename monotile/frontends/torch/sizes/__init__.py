"""Symbolic sizes, of the call or data-dependent: guards on them, their ranges, specialisations for some of them, and their binding in a Program."""
