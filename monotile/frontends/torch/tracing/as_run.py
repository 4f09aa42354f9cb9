"""Models that ask whether they are traced, and whose code for that fails: they are exported by the code that eager PyTorch runs.

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

_QUESTIONS = "is_compiling", "is_exporting"  # of torch.compiler
T = TypeVar("T")


def exported_as_run(run: Callable[[], T]) -> T:
    """What `run` gives, which calls a model; if that raises an error of the model's own, what it gives where the model is told that nothing traces
    it. Raises the first error where it has not asked, or that fails too."""
    try:
        return run()
    except MonotileError:
        raise
    except Exception as e:
        if "data-dependent" in str(e):
            raise
        first = e
    with _denied() as askers:
        try:
            found = run()
        except Exception:
            found = None
    if found is None or not askers:
        raise first
    return found


@contextmanager
def _denied() -> Generator[set[str]]:
    """Within, a model that asks is told no. Gives the files that have asked."""
    askers: set[str] = set()

    def heard(question: Callable[[], bool]) -> Callable[[], bool]:
        def asked() -> bool:
            # PyTorch's tracer would take `inspect.currentframe` for a part of the model.
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            if not is_users(frame.f_code.co_filename):
                return question()
            askers.add(frame.f_code.co_filename)
            return False

        return asked

    with ExitStack() as stack:
        for name in _QUESTIONS:
            question = heard(getattr(torch.compiler, name))
            stack.enter_context(patch.object(torch.compiler, name, question))
        yield askers
