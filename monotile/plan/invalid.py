"""How the parts of the Plan's verifier say that a Plan is not valid."""

from typing import NoReturn

from monotile.errors import VerificationError


def fail(message: str) -> NoReturn:
    """Raises VerificationError."""
    raise VerificationError(f"the Plan is not valid: {message}")
