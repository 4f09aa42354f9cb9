"""Detects long Python loops with a fixed number of iterations, so that they are traced once, like loops over a symbolic size.

PyTorch's tracer takes one to three milliseconds per operator. 24 layers of 128 iterations take a minute, and later passes another quarter of a
minute to find that all iterations are equal. While a model is traced, calls are counted by the loop that contains them. Once a loop has made many
calls, its last iterations are compared in the graph. If they differ only in the positions that they read and write, the loop is converted
(`traced_loop.py`). A loop that cannot be converted, or whose index is used for anything but such positions, is traced iteration by iteration.
"""

import ast
import dis
import functools
import inspect
import textwrap
import tokenize
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from monotile.frontends.torch.loops.detection import LoopDetectedError
from monotile.frontends.torch.origin import is_users

MIN_ITERATIONS = 16  # of a loop that is traced once, at least
MIN_CALLS = 384  # of PyTorch functions in a loop before it is compared: half a second of tracing
SAMPLE_EVERY = 16  # one of so many calls is examined
_FOR_ITER = dis.opmap["FOR_ITER"]
_COMPARED = 4  # iterations that are compared
_INDEXING = frozenset({torch.ops.aten.select.int, torch.ops.aten.slice.Tensor})
_is_users = functools.cache(is_users)


Head = tuple[CodeType, int]  # of a loop: the function's code, and the line


class LongLoops:
    """Counts calls by loop. converts: converts the loop at a line of a function, given by its code, and returns whether that was possible and new.
    own: the original code of a converted function. known: the heads of long loops; new ones are added."""

    def __init__(
        self,
        converts: Callable[[CodeType, int], bool],
        own: Callable[[CodeType], CodeType],
        known: set[Head],
    ) -> None:
        self._converts, self._own, self._known = converts, own, known
        self._calls = 0
        self._seen = Counter[Head]()
        self._first: dict[Head, _Sample] = {}

    def call(self, frame: FrameType) -> None:
        """Counts a call of a PyTorch function. Raises LoopDetectedError when a loop was converted."""
        self._calls += 1
        at: FrameType | None = None if self._calls % SAMPLE_EVERY else frame
        while at is not None:
            if _is_users(at.f_code.co_filename):
                own = self._own(at.f_code)
                for loop in loops_of(own):
                    if loop.first <= at.f_lineno <= loop.last:
                        self._sample((own, loop.line), loop, at)
            at = at.f_back

    def _sample(self, key: "Head", loop: "Loop", frame: FrameType) -> None:
        if key in self._known and self._converts(*key):
            raise LoopDetectedError
        self._seen[key] += SAMPLE_EVERY
        mode = get_proxy_mode()
        if self._seen[key] < MIN_CALLS // 2 or mode is None:
            return
        graph: fx.Graph = mode.tracer.graph
        now = _Sample(id(frame), _iteration_of(loop, frame), len(graph.nodes))
        then = self._first.setdefault(key, now)
        if then.frame != now.frame:
            self._first[key] = now
        elif self._seen[key] >= MIN_CALLS and now.iteration - then.iteration >= _COMPARED:
            del self._first[
                key
            ]  # if its iterations are not equal, it is compared again after as many calls
            length = (now.nodes - then.nodes) / (now.iteration - then.iteration)
            if _may_convert(loop, frame) and are_equal(graph, length) and self._converts(*key):
                self._known.add(key)
                raise LoopDetectedError


class _Sample(NamedTuple):
    """frame: its id. iteration: its index. nodes: the number of nodes of the graph so far."""

    frame: int
    iteration: int
    nodes: int


class Loop(NamedTuple):
    """A `for` loop. line: of its head. first, last: lines of its body."""

    node: ast.For
    line: int
    first: int
    last: int


@functools.lru_cache(maxsize=1024)
def loops_of(code: CodeType) -> tuple[Loop, ...]:
    """The `for` loops over a `range` in a function."""
    if "range" not in code.co_names or _FOR_ITER not in code.co_code[::2]:
        return ()  # most functions: reading their source takes some milliseconds
    try:
        source, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(source)))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return ()
    ast.increment_lineno(tree, first - 1)
    return tuple(
        Loop(x, x.iter.lineno, x.body[0].lineno, x.end_lineno or x.lineno)
        for x in ast.walk(tree)
        if isinstance(x, ast.For) and not x.orelse and _is_over_range(x)
    )


def _is_over_range(loop: ast.For) -> bool:
    match loop:
        case ast.For(ast.Name(), ast.Call(ast.Name("range"), _, [])):
            return True
        case _:
            return False


def _iterations_of(loop: Loop, frame: FrameType) -> range:
    """The range of its index; empty if unknown."""
    try:
        over = _value(loop.node.iter, frame)
    except _UnknownError:
        return range(0)
    return over if isinstance(over, range) else range(0)


def _iteration_of(loop: Loop, frame: FrameType) -> int:
    """The current iteration; 0 if unknown."""
    over, number = _iterations_of(loop, frame), frame.f_locals.get(_target(loop))
    return over.index(number) if type(number) is int and number in over else 0


def _target(loop: Loop) -> str:
    assert isinstance(loop.node.target, ast.Name)
    return loop.node.target.id


def _may_convert(loop: Loop, frame: FrameType) -> bool:
    """Whether a loop has many iterations, and its index is used only to index tensors."""
    return is_long(_iterations_of(loop, frame)) and all(
        _only_indexes(s, _target(loop), frame) for s in loop.node.body
    )


def is_long(over: Any) -> bool:
    """Whether a loop over it is long enough to be traced once."""
    return isinstance(over, range) and len(over) >= MIN_ITERATIONS


def are_equal(graph: fx.Graph, length: float) -> bool:
    """Whether the last traced iterations are the same except for positions in tensors. length: the approximate number of nodes of one."""
    most = int(1.4 * length) + 1
    nodes = list(islice(reversed(graph.nodes), (_COMPARED + 2) * most))[::-1]
    at = {node: k for k, node in enumerate(nodes)}
    for p in range(max(int(0.7 * length), 1), most + 1):
        compared = range(len(nodes) - (_COMPARED - 1) * p, len(nodes))
        if compared.start >= p and all(_canonical(nodes[k], at, p) == _canonical(nodes[k - p], at, p) for k in compared):  # fmt: skip
            return True
    return False


def _canonical(node: fx.Node, at: Mapping[fx.Node, int], iteration: int) -> object:
    """A form in which equal nodes of two iterations are equal. at: positions of the last nodes. iteration: the number of nodes of one."""

    def of(x: Any) -> Any:
        if isinstance(x, fx.Node):
            back = at[node] - at.get(x, -iteration)
            return back if back < 2 * iteration else x
        if isinstance(x, list | tuple):
            return tuple(map(of, x))
        return type(x) if type(x) is int and node.target in _INDEXING else (type(x), x)

    value = node.meta.get("val")
    shape = value.shape if isinstance(value, torch.Tensor) else None
    given = (of(node.args), tuple((k, of(x)) for k, x in node.kwargs.items()))
    return node.target, shape, given


def _only_indexes(node: ast.AST, name: str, frame: FrameType) -> bool:
    """Whether `node` uses the loop index `name` only to index tensors: `x[:, t]`, `x[t + 1]`."""
    if isinstance(node, ast.Name):
        return node.id != name
    if isinstance(node, ast.Subscript) and _reads(node.slice, name):
        try:
            within = isinstance(_value(node.value, frame), torch.Tensor)
        except _UnknownError:
            return False
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return within and all(_is_affine_index(p, name) for p in parts)
    return all(_only_indexes(x, name, frame) for x in ast.iter_child_nodes(node))


def _reads(node: ast.AST, name: str) -> bool:
    return any(isinstance(x, ast.Name) and x.id == name for x in ast.walk(node))


def _is_affine_index(part: ast.expr, name: str) -> bool:
    """Whether a part of an index is a constant, the loop index plus a constant, or a slice of these."""
    match part:
        case ast.Slice(lower, upper, step):
            ends = [x for x in (lower, upper, step) if x is not None]
            return all(_is_affine_index(x, name) for x in ends)
        case ast.Constant(value):
            return value is None or value is Ellipsis or type(value) is int
        case ast.UnaryOp(ast.USub(), ast.Constant()):
            return True
        case ast.BinOp(ast.Name(read), ast.Add() | ast.Sub(), ast.Constant(k)):
            return read == name and type(k) is int
        case ast.Name(read):
            return read == name
        case _:
            return False


class _UnknownError(Exception):
    """The value of an expression is unknown."""


def _value(e: ast.expr, frame: FrameType) -> Any:
    """The value of `e` in `frame`, evaluated without side effects. Raises _UnknownError."""
    match e:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            for names in (frame.f_locals, frame.f_globals):
                if name in names:
                    return names[name]
        case ast.Attribute(inner, name):
            of = _value(inner, frame)
            if isinstance(of, torch.Tensor | torch.nn.Module) and (name == "shape" or name in _held(of)):  # fmt: skip
                return getattr(of, name)
        case ast.Subscript(inner, ast.Constant() | ast.UnaryOp(ast.USub(), ast.Constant()) as at):
            of, place = _value(inner, frame), ast.literal_eval(at)
            if isinstance(of, tuple | list) and type(place) is int and -len(of) <= place < len(of):
                return of[place]
        case ast.UnaryOp(ast.USub(), ast.Constant(value)) if type(value) is int:
            return -value
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            a, b = _value(left, frame), _value(right, frame)
            if type(a) is type(b) is int:
                return a + b if isinstance(op, ast.Add) else a - b
        case ast.Call(ast.Attribute(inner, "size"), [place], []):
            of, d = _value(inner, frame), _value(place, frame)
            if isinstance(of, torch.Tensor) and type(d) is int and -of.ndim <= d < of.ndim:
                return of.shape[d]
        case ast.Call(ast.Name("len"), [inner], []):
            of = _value(inner, frame)
            if isinstance(of, torch.Tensor) and of.ndim:
                return of.shape[0]
            if isinstance(of, list | tuple):
                return len(of)
        case ast.Call(ast.Name("range"), given, []):
            ends = [_value(x, frame) for x in given]
            if ends and all(type(n) is int for n in ends):
                return range(*ends)
        case _:
            pass
    raise _UnknownError


def _held(x: Any) -> dict[str, Any]:
    """The attributes of a module by name; none of a tensor."""
    if not isinstance(x, torch.nn.Module):
        return {}
    return {**vars(x), **x._parameters, **x._buffers}  # pyright: ignore[reportPrivateUsage]
