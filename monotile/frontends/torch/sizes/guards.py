"""Guards on sizes: the conditions that a model's code evaluates while it is exported, such as whether there is more than one token.

PyTorch traces as if no dimension were 1, and adds no guards that only a size of 1 would violate: its own operators treat 1 like 2. A model's code may
not, so the conditions that it evaluates are stored with the exported program. So are the values of sizes, and of expressions of sizes, that became
numbers: PyTorch drops guards that it cannot solve, such as `trunc(0.5 * n) == 4`.
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

_KEY = "monotile.guards"
_LAST = sys.maxsize  # the end of a slice without an end
_TORCH = os.path.dirname(torch.__file__) + os.sep
_LAYERS = (
    os.path.join(_TORCH, "nn") + os.sep
)  # their code counts as a model's, not as an operator's
# Files whose frames may be between a model's code and a SymBool: `bool(SymInt)`, and the forks of paths.
PATHS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "branches", "paths.py")
_BETWEEN = (torch.__file__, PATHS)


class SizeGuards:
    """The conditions on sizes that a model's code has evaluated, with their values."""

    def __init__(self) -> None:
        self._answers: dict[Any, tuple[Any, Any]] = {}
        self.equal = ""  # the line where a size was last found to equal a number

    def record(self, condition: Any, answer: float) -> None:
        """Records that `condition` had the value `answer`."""
        if isinstance(expr := getattr(condition, "expr", None), sympy.Basic):
            self._answers[expr] = condition, answer

    def keep(self, exported: ExportedProgram) -> None:
        """Stores the guards with `exported`, in its final symbols: equal sizes have become one symbol."""
        answers = [(node.expr, answer) for node, answer in self._answers.values()]
        said = [_as_condition(x, answer) for x, answer in answers]
        exported.graph_module.meta[_KEY] = [*said, *_slice_guards(exported.graph)]


def _as_condition(x: Any, answer: float) -> Any:
    if isinstance(answer, bool):
        return x if answer else sympy.Not(x)
    return sympy.Eq(x, answer)


def _slice_guards(graph: torch.fx.Graph) -> Iterator[Any]:
    """The guards that PyTorch omits for slices: their ends are within the tensor, as they are if no size is 1."""
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


def guards_of(exported: ExportedProgram) -> list[Any]:
    """The conditions on sizes under which `exported` was traced."""
    return exported.graph_module.meta.get(_KEY, [])


@contextmanager
def recorded_guards() -> Generator[SizeGuards]:
    """Within, guards on sizes are recorded."""
    found = SizeGuards()
    plain = torch.SymBool.__bool__
    numbers = {n: getattr(SymNode, n) for n in ("guard_int", "guard_float")}

    def number(name: str) -> Any:
        def made(node: SymNode, file: str, line: int) -> float:
            if isinstance(node.expr, sympy.Symbol):
                found.equal = _line()
            answer = numbers[name](node, file, line)
            found.record(node, answer)
            return answer

        return patch.object(SymNode, name, made)

    def evaluate(condition: torch.SymBool) -> bool:
        answer = plain(condition)
        if _is_models(inspect.currentframe()):
            found.record(condition.node, answer)
            if isinstance(condition.node.expr, sympy.Eq if answer else sympy.Ne):
                found.equal = _line()
        return answer

    # It counts as a frame of PyTorch, like the method itself: PyTorch examines the calling frame for an `assert`.
    evaluate.__code__ = evaluate.__code__.replace(co_filename=torch.__file__)
    with (
        patch.object(torch.SymBool, "__bool__", evaluate),
        number("guard_int"),
        number("guard_float"),
    ):
        yield found


def _line() -> str:
    """The model's line that evaluates a condition. Only text is kept: a frame would keep tensors alive, which PyTorch checks."""
    return describe_frame(users_frame(sys._getframe(2)))  # pyright: ignore[reportPrivateUsage]


def _is_models(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename in _BETWEEN:
        frame = frame.f_back
    file = frame.f_code.co_filename if frame else ""
    return not file.startswith(_TORCH) or file.startswith(_LAYERS)
