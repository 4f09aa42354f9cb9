"""Symbolic sizes as dictionary keys and in strings: `if n not in self.tables: self.tables[n] = ...`, `f"mask_{n}"`, `functools.cache`.

A symbolic size is not equal to any number as a key, and its text is the symbol's name. That is correct for caches. Other uses of a text are found by
tracing the model again with the text of the example's number, and of each number that the model may know (`key_texts.py`), and comparing the graphs. A
lookup in a dictionary or set that the same code does not fill is refused, because it may contain entries for numbers.
"""

import ast
import linecache
import re
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from monotile.errors import CaptureError
from monotile.frontends.torch.loops.stacked import is_dynamic
from monotile.frontends.torch.origin import describe_frame, is_users
from monotile.frontends.torch.sizes.key_texts import Text, candidates, text_of
from monotile.frontends.torch.tracing.restored_state import containers_of, modules_of, put_back

_ASKS = ("get", "pop", "count", "index", "hash", "set", "frozenset", "dict", "sorted")
_NAME = "size_of_dynamic_shapes_"  # longer than any number
_NUMBERED = re.compile(r"\d").search
_SUBSTITUTE = "compute with tensors, or leave this size out of dynamic_shapes"


class SymbolicKeys:
    """The uses of sizes as keys and in strings. at: the first line that formats one. used: the last line that uses one as a key."""

    def __init__(self) -> None:
        self.at = self.used = ""
        self._made: dict[tuple[CodeType, int, str], Text | None] = {}
        # The numbers whose texts some sizes have; others have the example's. None: all have their names.
        self._numbers: Mapping[str, int] | None = None

    @contextmanager
    def recorded(self) -> Generator[None]:
        text, hashed = torch.SymInt.__repr__, torch.SymInt.__hash__

        def repr_(x: torch.SymInt) -> str:
            return self._text(x, sys._getframe(1)) or text(x)  # pyright: ignore[reportPrivateUsage]

        def format_(x: torch.SymInt, how: str) -> str:
            return format(self._text(x, sys._getframe(1), how) or text(x), "" if how else how)  # pyright: ignore[reportPrivateUsage]

        def hash_(x: torch.SymInt) -> int:
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            if not is_users(frame.f_code.co_filename) or not is_dynamic(x):
                return hashed(x)
            if not _is_kept(frame):
                raise CaptureError(f"at {describe_frame(frame)}: a size of dynamic_shapes is looked up in a dictionary or set, and may be any number in a call: {_SUBSTITUTE}")  # fmt: skip
            self.used = describe_frame(frame)
            return hash((str(x.node.expr), id(x.node.shape_env)))

        with (
            patch.object(torch.SymInt, "__repr__", repr_),
            patch.object(torch.SymInt, "__format__", format_),
            patch.object(torch.SymInt, "__hash__", hash_),
        ):
            yield

    def _text(self, x: torch.SymInt, frame: FrameType, how: str = "") -> str | None:
        """The text of a size for the model, in the given format; None for code that is not a model's, or a size that is known."""
        if not is_users(frame.f_code.co_filename) or not is_dynamic(x):
            return None
        self.at = self.at or describe_frame(frame)
        expr = str(x.node.expr)
        if self._numbers is not None:
            return format(self._numbers.get(expr, x.node.hint), how)
        place = frame.f_code, frame.f_lasti, expr
        if place not in self._made:
            node, tree = _asking(frame.f_code, frame.f_lasti), _tree(frame.f_code.co_filename)
            self._made[place] = text_of(x, frame, node, tree)
        return f"{_NAME}{expr}"

    def check(
        self,
        exported: ExportedProgram,
        model: torch.nn.Module,
        again: Callable[[], ExportedProgram],
    ) -> None:
        """Raises CaptureError if the text of a size changes `exported`, an export of `model`. again: exports it again."""
        made = [x for x in self._made.values() if x is not None]
        if not made:
            return
        tries = candidates(made, model)
        if tries is None:
            raise CaptureError(f"at {self.at}: the text of a size of dynamic_shapes may be compared with the texts of many numbers in the model: {_SUBSTITUTE}")  # fmt: skip
        for numbers in ({}, *tries):
            if not self._is_same(exported, model, again, numbers):
                said = ", ".join(map(str, numbers.values()))
                raise CaptureError(f"at {self.at}: the text of a size of dynamic_shapes determines what the model computes or returns{f' (as for {said})' if said else ''}, and may be the text of any number in a call: {_SUBSTITUTE}")  # fmt: skip

    def _is_same(
        self,
        exported: ExportedProgram,
        model: torch.nn.Module,
        again: Callable[[], ExportedProgram],
        numbers: Mapping[str, int],
    ) -> bool:
        """Whether the model's graph is the same with the texts of these numbers."""
        self._numbers = numbers
        try:
            with _without_kept(model):
                return _is_same(exported, again())
        except Exception:
            return False
        finally:
            self._numbers = None

    def advice(self) -> str:
        """Advice for an error message."""
        what = "in a text" if self.at else "a key"
        return f". At {self.at or self.used}, a size of dynamic_shapes is {what}, by its name instead of a number: {_SUBSTITUTE}" if self.at or self.used else ""  # fmt: skip


@contextmanager
def _without_kept(model: torch.nn.Module) -> Generator[None]:
    """Within, the model's dictionaries are without tensors that its calls have cached under texts with numbers."""
    held = {id(x) for m in model.modules() for x in (vars(m), m._parameters, m._buffers)}  # pyright: ignore[reportPrivateUsage]
    roots = [model, *(x for m in modules_of(model) for x in vars(m).values() if type(x) is dict)]
    found = [x for x in containers_of(roots) if isinstance(x, dict) and id(x) not in held]
    before = [(x, dict(x)) for x in found]
    try:
        for x in found:
            for key in [k for k, value in x.items() if _NUMBERED(str(k)) and _is_made(value)]:
                del x[key]
        yield
    finally:
        for x, own in before:
            if len(x) != len(own):
                put_back(x, own)


def _is_made(x: Any) -> bool:
    leaves = pytree.tree_leaves(x)
    return bool(leaves) and all(isinstance(y, torch.Tensor) and not isinstance(y, torch.nn.Parameter) for y in leaves)  # fmt: skip


def _is_same(one: ExportedProgram, other: ExportedProgram) -> bool:
    codes = [[m.code for m in x.graph_module.modules() if isinstance(m, GraphModule)] for x in (one, other)]  # fmt: skip
    if codes[0] != codes[1] or one.call_spec.out_spec != other.call_spec.out_spec:
        return False
    held = [pytree.tree_leaves(dict(sorted(x.constants.items()))) for x in (one, other)]
    if len(held[0]) != len(held[1]):
        return False
    pairs = ((a, b) for a, b in zip(*held, strict=True) if isinstance(a, torch.Tensor))
    return all(isinstance(b, torch.Tensor) and torch.equal(a, b) for a, b in pairs)


def _is_kept(frame: FrameType) -> bool:
    """Whether the lookup by `frame` is in a cache: `functools.cache`, or a container that the same code fills."""
    node = _asking(frame.f_code, frame.f_lasti)
    match node:
        case ast.Subscript() | ast.Assign() | ast.Delete():  # fails if the key is missing
            return True
        case ast.Call(ast.Attribute(_, "setdefault")):
            return True
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[container]):
            pass
        case ast.Call(ast.Attribute(container, "get")):
            pass
        case ast.Call(ast.Name(name) | ast.Attribute(_, name)):
            return name not in _ASKS
        case _:
            return False
    tree = _tree(frame.f_code.co_filename)
    stored = (x.value for x in ast.walk(tree) if isinstance(x, ast.Subscript) and isinstance(x.ctx, ast.Store))  # fmt: skip
    return ast.dump(container) in map(ast.dump, stored)


def _asking(code: CodeType, at: int) -> ast.AST | None:
    """The innermost expression or statement that an instruction belongs to, by its position in the file."""
    places = list(code.co_positions())
    line, last, first, end = places[at // 2]
    for node in ast.walk(_tree(code.co_filename)):
        if not isinstance(node, ast.expr | ast.stmt) or isinstance(node, ast.Expr):
            continue
        if (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == (line, last, first, end):  # fmt: skip
            return node
    return None


@lru_cache(32)
def _tree(path: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return ast.Module([], [])
