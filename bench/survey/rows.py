"""What a survey says of a model."""

import time
import traceback
from collections.abc import Callable
from typing import TypeVar

import msgspec

from monotile.errors import MonotileError, TargetError

T = TypeVar("T")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """outcome: right, inexact (over 1e-5, and 3 times eager's error; of a generator: other ids), compiled (not run), refused (an error
    of Monotile's), failed (any other), or not built (PyTorch itself makes or runs no such model). seconds: of compilation."""

    name: str
    outcome: str
    said: str = ""
    error: float | None = None
    eager: float | None = None
    seconds: float = 0.0


def attempted(name: str, run: Callable[[], T]) -> T | Row:
    """What `run` gives, which compiles and calls; where it raises, the row that says so."""
    start = time.perf_counter()
    try:
        return run()
    except TargetError:
        return Row(name=name, outcome="compiled", seconds=time.perf_counter() - start)
    except MonotileError as reason:
        return Row(name=name, outcome="refused", said=words(reason))
    except Exception as reason:
        said = words(reason) + "\n" + traceback.format_exc()[-1500:]
        return Row(name=name, outcome="failed", said=said)


def words(reason: BaseException) -> str:
    return f"{type(reason).__name__}: {reason}"[:600]
