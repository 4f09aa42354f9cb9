"""How the parts of the Plan's verifier say that a Plan is not valid."""

from monotile.errors import VerificationError


def fail(message: str) -> None:
    """Raises VerificationError."""
    raise VerificationError(f"the Plan is not valid: {message}")
