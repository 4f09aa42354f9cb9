"""Exports models that check whether they are being traced, and whose code for that case fails, by the code that eager PyTorch runs.

Libraries leave out what a tracer may not take (checks of data, masks that are all ones), and some then use what they have left out.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import TypeVar
from unittest.mock import patch

import torch

from monotile.errors import MonotileError
from monotile.frontends.torch.origin import is_users

_CHECKS = "is_compiling", "is_exporting"  # of torch.compiler
T = TypeVar("T")


def exported_as_eager(run: Callable[[], T]) -> T:
    """The result of `run`, which calls a model. If that raises an error of the model's own, `run` is repeated while the model's checks say that it is not
    traced. Raises the first error if the model made no such check, or if that fails too."""
    try:
        return run()
    except MonotileError:
        raise
    except Exception as e:
        if "data-dependent" in str(e):
            raise
        first = e
    with _tracing_denied() as askers:
        try:
            found = run()
        except Exception:
            found = None
    if found is None or not askers:
        raise first
    return found


@contextmanager
def _tracing_denied() -> Generator[set[str]]:
    """Within, a model's checks say that it is not traced. Yields the files that have checked."""
    files: set[str] = set()

    def denied(check: Callable[[], bool]) -> Callable[[], bool]:
        def checked() -> bool:
            # PyTorch's tracer would take `inspect.currentframe` for a part of the model.
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            if not is_users(frame.f_code.co_filename):
                return check()
            files.add(frame.f_code.co_filename)
            return False

        return checked

    with ExitStack() as stack:
        for name in _CHECKS:
            check = denied(getattr(torch.compiler, name))
            stack.enter_context(patch.object(torch.compiler, name, check))
        yield files
