"""Python loops of many turns whose number is known: they are traced once, as those that a size ends are.

PyTorch's tracer takes one to three milliseconds for an operator, so that 24 layers of 128 turns take a minute and the passes behind it a
quarter of one, to find that all turns are equal. While a model is traced, calls are counted by the loop in which they are made. In one that
has taken many, what was traced last is compared, turn by turn; where the turns are equal but for the places that they read and write, the
loop is converted (`turns.py`). A loop that cannot be, or in which the number of its turn is used for anything but such a place, is traced
turn by turn.
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

from monotile.frontends.torch.loops.heard import BegunError
from monotile.frontends.torch.origin import is_users

TURNS = 16  # the fewest of a loop that is traced once
CALLS = 384  # of PyTorch's functions, in a loop, until it is thought worth it: half a second
EVERY = 16  # of how many calls one is looked at
_TURN = dis.opmap["FOR_ITER"]
_SAME = 4  # turns that are compared
_STEPS = frozenset({torch.ops.aten.select.int, torch.ops.aten.slice.Tensor})
_is_users = functools.cache(is_users)


Head = tuple[CodeType, int]  # of a function, its line there


class LongLoops:
    """What counts the calls. begins: whether the loop whose head is at a line of a function, by its code, is to be converted and was not; own: the code
    that a function had before it was converted. known: the heads of long loops; those that are found are added."""

    def __init__(
        self,
        begins: Callable[[CodeType, int], bool],
        own: Callable[[CodeType], CodeType],
        known: set[Head],
    ) -> None:
        self._begins, self._own, self._known = begins, own, known
        self._calls = 0
        self._seen = Counter[Head]()
        self._first: dict[Head, _Look] = {}

    def call(self, frame: FrameType) -> None:
        """A function of PyTorch's is called. Raises BegunError where a loop is to be converted."""
        self._calls += 1
        at: FrameType | None = None if self._calls % EVERY else frame
        while at is not None:
            if _is_users(at.f_code.co_filename):
                own = self._own(at.f_code)
                for loop in loops_of(own):
                    if loop.first <= at.f_lineno <= loop.last:
                        self._within((own, loop.line), loop, at)
            at = at.f_back

    def _within(self, key: "Head", loop: "Loop", frame: FrameType) -> None:
        if key in self._known and self._begins(*key):
            raise BegunError
        self._seen[key] += EVERY
        mode = get_proxy_mode()
        if self._seen[key] < CALLS // 2 or mode is None:
            return
        graph: fx.Graph = mode.tracer.graph
        now = _Look(id(frame), _number(loop, frame), len(graph.nodes))
        then = self._first.setdefault(key, now)
        if then.frame != now.frame:
            self._first[key] = now
        elif self._seen[key] >= CALLS and now.turn - then.turn >= _SAME:
            del self._first[key]  # looked at again as much later, if its turns are not equal
            length = (now.nodes - then.nodes) / (now.turn - then.turn)
            if _may_turn(loop, frame) and are_equal(graph, length) and self._begins(*key):
                self._known.add(key)
                raise BegunError


class _Look(NamedTuple):
    """frame: by its id. turn: which one. nodes: of the graph by then."""

    frame: int
    turn: int
    nodes: int


class Loop(NamedTuple):
    """line: of its head. first, last: lines of its body."""

    node: ast.For
    line: int
    first: int
    last: int


@functools.lru_cache(maxsize=1024)
def loops_of(code: CodeType) -> tuple[Loop, ...]:
    """The `for` loops of a function that count: over a `range`."""
    if "range" not in code.co_names or _TURN not in code.co_code[::2]:
        return ()  # most: finding their text takes some milliseconds
    try:
        source, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(source)))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return ()
    ast.increment_lineno(tree, first - 1)
    return tuple(
        Loop(x, x.iter.lineno, x.body[0].lineno, x.end_lineno or x.lineno)
        for x in ast.walk(tree)
        if isinstance(x, ast.For) and not x.orelse and _counts(x)
    )


def _counts(loop: ast.For) -> bool:
    match loop:
        case ast.For(ast.Name(), ast.Call(ast.Name("range"), _, [])):
            return True
        case _:
            return False


def _turns_of(loop: Loop, frame: FrameType) -> range:
    """Its numbers; none if they are not found out."""
    try:
        over = _value(loop.node.iter, frame)
    except _UnknownError:
        return range(0)
    return over if isinstance(over, range) else range(0)


def _number(loop: Loop, frame: FrameType) -> int:
    """Which turn it takes; 0 if it is not known."""
    over, number = _turns_of(loop, frame), frame.f_locals.get(_target(loop))
    return over.index(number) if type(number) is int and number in over else 0


def _target(loop: Loop) -> str:
    assert isinstance(loop.node.target, ast.Name)
    return loop.node.target.id


def _may_turn(loop: Loop, frame: FrameType) -> bool:
    """Whether a loop has many turns, and the number of each is nothing but a place in tensors."""
    return is_long(_turns_of(loop, frame)) and all(
        _are_places(s, _target(loop), frame) for s in loop.node.body
    )


def is_long(over: Any) -> bool:
    """Whether a loop over it may be traced once."""
    return isinstance(over, range) and len(over) >= TURNS


def are_equal(graph: fx.Graph, length: float) -> bool:
    """Whether the last turns that were traced are the same but for the places in tensors that they take. length: of one in nodes, about."""
    most = int(1.4 * length) + 1
    nodes = list(islice(reversed(graph.nodes), (_SAME + 2) * most))[::-1]
    at = {node: k for k, node in enumerate(nodes)}
    for p in range(max(int(0.7 * length), 1), most + 1):
        compared = range(len(nodes) - (_SAME - 1) * p, len(nodes))
        if compared.start >= p and all(_as(nodes[k], at, p) == _as(nodes[k - p], at, p) for k in compared):  # fmt: skip
            return True
    return False


def _as(node: fx.Node, at: Mapping[fx.Node, int], turn: int) -> object:
    """What nodes of two turns have in common if they do the same. at: places of the last nodes. turn: how many one has."""

    def of(x: Any) -> Any:
        if isinstance(x, fx.Node):
            back = at[node] - at.get(x, -turn)
            return back if back < 2 * turn else x
        if isinstance(x, list | tuple):
            return tuple(map(of, x))
        return type(x) if type(x) is int and node.target in _STEPS else (type(x), x)

    value = node.meta.get("val")
    shape = value.shape if isinstance(value, torch.Tensor) else None
    given = (of(node.args), tuple((k, of(x)) for k, x in node.kwargs.items()))
    return node.target, shape, given


def _are_places(node: ast.AST, name: str, frame: FrameType) -> bool:
    """Whether all that is read of the number `name` within `node` are places in tensors: `x[:, t]`, `x[t + 1]`."""
    if isinstance(node, ast.Name):
        return node.id != name
    if isinstance(node, ast.Subscript) and _reads(node.slice, name):
        try:
            within = isinstance(_value(node.value, frame), torch.Tensor)
        except _UnknownError:
            return False
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return within and all(_is_place(p, name) for p in parts)
    return all(_are_places(x, name, frame) for x in ast.iter_child_nodes(node))


def _reads(node: ast.AST, name: str) -> bool:
    return any(isinstance(x, ast.Name) and x.id == name for x in ast.walk(node))


def _is_place(part: ast.expr, name: str) -> bool:
    """Whether a part of an index is a slice or a number that is written there, or the loop's number, moved by such."""
    match part:
        case ast.Slice(lower, upper, step):
            ends = [x for x in (lower, upper, step) if x is not None]
            return all(_is_place(x, name) for x in ends)
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
    """What an expression gives is not found out."""


def _value(e: ast.expr, frame: FrameType) -> Any:
    """What `e` gives in `frame`, if finding out changes nothing. Raises _UnknownError."""
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
