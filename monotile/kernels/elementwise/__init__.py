"""Independent elements."""
