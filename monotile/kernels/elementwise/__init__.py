"""Element-wise computation (maps)."""
