"""Raises the errors of the Plan's verifier."""

from typing import NoReturn

from monotile.errors import VerificationError


def fail(message: str) -> NoReturn:
    """Raises VerificationError."""
    raise VerificationError(f"the Plan is not valid: {message}")
