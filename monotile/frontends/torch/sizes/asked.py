"""What a model asks of sizes while it is exported, such as whether there is more than one token.

PyTorch traces as if no dimension were 1, and guards nothing that only 1 would change: its own operators do the same for 1 as for 2. A model need
not, so what its code asks is kept here beside the exported program. So is what number was made of a size, or of what is computed from sizes: for
what it cannot solve, such as `trunc(0.5 * n) == 4`, PyTorch drops the guard.
"""

import inspect
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx.experimental.sym_node import SymNode

from monotile.frontends.torch.origin import describe_frame, users_frame

_KEY = "monotile.asked"
_LAST = sys.maxsize  # where a slice ends that has no end
_TORCH = os.path.dirname(torch.__file__) + os.sep
_LAYERS = os.path.join(_TORCH, "nn") + os.sep  # whose code is a model's, not an operator's
# Where a SymBool is asked, also for bool(SymInt), and where courses are told apart.
_COURSES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "branches", "courses.py")
_BETWEEN = (torch.__file__, _COURSES)


class Asked:
    """Conditions on sizes that a model's code has asked for, with the answers."""

    def __init__(self) -> None:
        self._answers: dict[Any, tuple[Any, Any]] = {}
        self.equal = ""  # where a size was last found to be a number

    def hear(self, condition: Any, answer: float) -> None:
        """condition: the symbol that has been asked for, and was `answer`."""
        if isinstance(expr := getattr(condition, "expr", None), sympy.Basic):
            self._answers[expr] = condition, answer

    def keep(self, exported: ExportedProgram) -> None:
        """With `exported`, by the symbols that it has by now: what turned out to be equal is one."""
        answers = [(node.expr, answer) for node, answer in self._answers.values()]
        said = [_said(x, answer) for x, answer in answers]
        exported.graph_module.meta[_KEY] = [*said, *_of_slices(exported.graph)]


def _said(x: Any, answer: float) -> Any:
    if isinstance(answer, bool):
        return x if answer else sympy.Not(x)
    return sympy.Eq(x, answer)


def _of_slices(graph: torch.fx.Graph) -> Iterator[Any]:
    """What PyTorch takes for granted of slices: that their ends lie within, as they do where no size is 1."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor):
        x, dim, start, end, step = (*node.args, *(0, None, None, 1)[len(node.args) - 1 :])
        source: Any = x
        n, length = (y.meta["val"].shape[dim] for y in (source, node))
        if not isinstance(n, torch.SymInt) or step != 1:
            continue
        n, length = n.node.expr, _expr(length)
        first, last = (_expr(k) + (n if _is_negative(k) else 0) for k in (start or 0, _LAST if end is None else end))  # fmt: skip
        last = n if last == _LAST else last
        if sympy.expand(last - first - length) == 0:
            yield from (sympy.Ge(first, 0), sympy.Ge(last, first), sympy.Ge(n, last))


def _expr(x: Any) -> Any:
    value = x.meta["val"] if isinstance(x, torch.fx.Node) else x
    return value.node.expr if isinstance(value, torch.SymInt) else sympy.Integer(value)


def _is_negative(x: Any) -> bool:
    return isinstance(x, int) and x < 0


def kept(exported: ExportedProgram) -> list[Any]:
    """What holds of the sizes that it was traced for, as far as the model asked."""
    return exported.graph_module.meta.get(_KEY, [])


@contextmanager
def asked() -> Generator[Asked]:
    """Hears what is asked within."""
    found = Asked()
    plain = torch.SymBool.__bool__
    numbers = {n: getattr(SymNode, n) for n in ("guard_int", "guard_float")}

    def number(name: str) -> Any:
        def made(node: SymNode, file: str, line: int) -> float:
            if isinstance(node.expr, sympy.Symbol):
                found.equal = _line()
            answer = numbers[name](node, file, line)
            found.hear(node, answer)
            return answer

        return patch.object(SymNode, name, made)

    def ask(condition: torch.SymBool) -> bool:
        answer = plain(condition)
        if _of_a_model(inspect.currentframe()):
            found.hear(condition.node, answer)
            if isinstance(condition.node.expr, sympy.Eq if answer else sympy.Ne):
                found.equal = _line()
        return answer

    # A frame of PyTorch's, as that of the method itself: PyTorch looks at the frame behind it for an `assert`.
    ask.__code__ = ask.__code__.replace(co_filename=torch.__file__)
    with patch.object(torch.SymBool, "__bool__", ask), number("guard_int"), number("guard_float"):
        yield found


def _line() -> str:
    """Of the model, that is asking. A frame that held itself would keep tensors which PyTorch looks for."""
    return describe_frame(users_frame(sys._getframe(2)))  # pyright: ignore[reportPrivateUsage]


def _of_a_model(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename in _BETWEEN:
        frame = frame.f_back
    file = frame.f_code.co_filename if frame else ""
    return not file.startswith(_TORCH) or file.startswith(_LAYERS)
