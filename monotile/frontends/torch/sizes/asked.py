"""What a model asks of sizes while it is exported, such as whether there is more than one token.

PyTorch traces as if no dimension were 1, and guards nothing that only 1 would change: its own operators do the same for 1 as for 2. A model need
not, so what its code asks is kept here beside the exported program.
"""

import inspect
import os
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch.export import ExportedProgram

_KEY = "monotile.asked"
_TORCH = os.path.dirname(torch.__file__) + os.sep
_LAYERS = os.path.join(_TORCH, "nn") + os.sep  # whose code is a model's, not an operator's
# Where a SymBool is asked, also for bool(SymInt), and where courses are told apart.
_COURSES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "branches", "courses.py")
_BETWEEN = (torch.__file__, _COURSES)


class Asked:
    """Conditions on sizes that a model's code has asked for, with the answers."""

    def __init__(self) -> None:
        self._answers: dict[Any, tuple[Any, bool]] = {}

    def hear(self, condition: Any, answer: bool) -> None:
        if isinstance(expr := getattr(condition, "expr", None), sympy.Basic):
            self._answers[expr] = condition, answer

    def keep(self, exported: ExportedProgram) -> None:
        """With `exported`, by the symbols that it has by now: what turned out to be equal is one."""
        answers = [(node.expr, answer) for node, answer in self._answers.values()]
        exported.graph_module.meta[_KEY] = [x if answer else sympy.Not(x) for x, answer in answers]


def kept(exported: ExportedProgram) -> list[Any]:
    """What holds of the sizes that it was traced for, as far as the model asked."""
    return exported.graph_module.meta.get(_KEY, [])


@contextmanager
def asked() -> Generator[Asked]:
    """Hears what is asked within."""
    found = Asked()
    plain = torch.SymBool.__bool__

    def ask(condition: torch.SymBool) -> bool:
        answer = plain(condition)
        if _of_a_model(inspect.currentframe()):
            found.hear(condition.node, answer)
        return answer

    # A frame of PyTorch's, as that of the method itself: PyTorch looks at the frame behind it for an `assert`.
    ask.__code__ = ask.__code__.replace(co_filename=torch.__file__)
    with patch.object(torch.SymBool, "__bool__", ask):
        yield found


def _of_a_model(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename in _BETWEEN:
        frame = frame.f_back
    file = frame.f_code.co_filename if frame else ""
    return not file.startswith(_TORCH) or file.startswith(_LAYERS)
