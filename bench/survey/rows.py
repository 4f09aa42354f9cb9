"""What a survey says of a model."""

import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """outcome: right, inexact (over 1e-5, and 3 times eager's error; of a generator: other ids), compiled (not run), refused (an error
    of Monotile's), failed (any other), or not built (PyTorch itself makes or runs no such model). seconds: of compilation."""

    name: str
    outcome: str
    said: str = ""
    error: float | None = None
    eager: float | None = None
    seconds: float = 0.0


def words(reason: BaseException) -> str:
    return f"{type(reason).__name__}: {reason}"[:600]
