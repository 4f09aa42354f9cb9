"""What steps ask for before they need it."""
