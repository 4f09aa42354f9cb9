"""Rolling: repeated sequences of statements become loops."""
