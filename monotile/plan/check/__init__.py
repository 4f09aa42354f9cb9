"""The Plan's verifier. It imports no scheduler."""
