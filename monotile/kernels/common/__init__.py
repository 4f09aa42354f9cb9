"""What several families share: operands, epilogue, thread map, cost of memory."""
