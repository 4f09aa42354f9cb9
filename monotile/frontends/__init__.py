"""What a Program is made from."""
