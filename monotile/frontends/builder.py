"""The Builder, with which lowering functions emit Computes and name their tensors."""

import math
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from monotile.analysis.contraction import contraction
from monotile.frontends.draws import Draws
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Expr,
    Load,
    Tensor,
    Unary,
    cast,
    const,
    idx,
    loads,
)
from monotile.ir.intervals import type_range
from monotile.ir.program import Compute, Scatter, Statement, Weight, compute

Scalar = bool | int | float
Operand = Tensor | Scalar

# A tensor's name becomes a C identifier.
_C_WORDS = frozenset(
    [
        "auto",
        "break",
        "case",
        "char",
        "const",
        "continue",
        "default",
        "do",
        "double",
        "else",
        "enum",
        "extern",
        "float",
        "for",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "register",
        "restrict",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "typedef",
        "union",
        "unsigned",
        "void",
        "volatile",
        "while",
        "bool",
        "half",
        "true",
        "false",
    ]
)


class Type(NamedTuple):
    """Shape and element type of a tensor."""

    shape: tuple[int, ...]
    dtype: DType


class Unsupported(Exception):
    """A variant of an operator that has no lowering; the message says which."""


class Names:
    """Makes unique names that are valid C identifiers."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def unique(self, wanted: str) -> str:
        base = re.sub(r"\W", "_", wanted) or "t"
        if base[0].isdigit() or base in _C_WORDS or re.fullmatch(r"[ir]\d+", base):
            base = f"t_{base}"
        name, k = base, 1
        while name in self._used:
            name, k = f"{base}_{k}", k + 1
        self._used.add(name)
        return name


class Builder:
    """Collects the statements of one body, operator by operator.

    node:    name of the current operator; the names of its tensors begin with it.
    origin:  the user's source line.
    results: the types of the operator's results by PyTorch, in order.
    tf32:    whether factors of float32 may be rounded to TF32 in products of the current operator.
    weights, constants: constant tensors of the graph, and their values by part name.
    sizes:   the scalars of symbols that stand for sizes which data decide.
    granted: tensors whose evaluation checks what is taken for granted of the data; None in a nested body.
    draws:   the random numbers of the graph.
    loops:   the axes of the loops around the body.
    permutations: names of vectors that have each position once, as the order of a sort.
    """

    def __init__(self, names: Names | None = None) -> None:
        self.names = names or Names()
        self.statements: list[Statement] = []
        self.weights: list[Weight] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self.sizes: dict[str, Tensor] = {}
        self.granted: list[Tensor] | None = []
        self._tables: dict[Hashable, Tensor] = {}
        self.draws = Draws(self.names.unique)
        self.loops: tuple[Axis, ...] = ()
        self.permutations = set[str]()
        self.node = ""
        self.origin = ""
        self.results: tuple[Type, ...] = ()
        self.tf32 = False

    def begin(self, node: str, origin: str, results: tuple[Type, ...]) -> None:
        """Begins the lowering of the operator `node`."""
        self.node, self.origin, self.results = node, origin, results

    def nested(self, *loops: Axis) -> "Builder":
        """A builder for a body inside this one, lowering the same operator. loops: those that it is the body of."""
        inner = Builder(self.names)
        inner.weights, inner.constants = self.weights, self.constants
        inner._tables, inner.sizes, inner.granted = self._tables, self.sizes, None
        inner.draws, inner.loops = self.draws, (*self.loops, *loops)
        inner.permutations = self.permutations
        inner.begin(self.node, self.origin, self.results)
        inner.tf32 = self.tf32
        return inner

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the operator's first result."""
        return self.results[0].shape

    @property
    def dtype(self) -> DType:
        """The element type of the operator's first result."""
        return self.results[0].dtype

    def tensor(self, shape: Sequence[int], dtype: DType, part: str = "") -> Tensor:
        """A Tensor with a unique name: the node's, followed by `part`."""
        name = f"{self.node}_{part}" if part else self.node
        return Tensor(self.names.unique(name), tuple(shape), dtype)

    def emit(
        self,
        shape: Sequence[int],
        dtype: DType,
        body: Callable[..., Expr],
        *,
        reduce: Sequence[int] = (),
        combiner: str | None = None,
        part: str = "",
    ) -> Tensor:
        """A Compute; `body` is called with the axes, then the reduce axes."""
        out = self.tensor(shape, dtype, part)
        made = compute(out, body, reduce=tuple(reduce), combiner=combiner, origin=self.origin)
        self.statements.append(_in_tf32(made) if self.tf32 and combiner == "sum" else made)
        return out

    def result(
        self,
        body: Callable[..., Expr],
        *,
        reduce: Sequence[int] = (),
        combiner: str | None = None,
        index: int = 0,
    ) -> Tensor:
        """The Compute of the operator's result number `index`."""
        shape, dtype = self.results[index]
        part = "" if len(self.results) == 1 else str(index)
        return self.emit(shape, dtype, body, reduce=reduce, combiner=combiner, part=part)

    def scatter(
        self,
        base: Tensor,
        extents: Sequence[int],
        point: Callable[..., tuple[Sequence[Expr], Expr]],
        combiner: str | None = None,
        part: str = "",
        distinct: bool = False,
    ) -> Tensor:
        """A Scatter over axes of `extents`; `point` gives the index and the value at the axes. distinct: no two indices are equal."""
        axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(extents))
        index, value = point(*axes)
        if not base.shape:  # a Scatter needs at least one axis: a scalar becomes a row of one
            row = self.emit((1,), base.dtype, lambda _: load(base, ()), part="row")
            out = self.tensor((1,), base.dtype, "written")
            self._scatter(out, row, (axes, (idx(0),), value), combiner)
            return self.emit((), base.dtype, lambda: load(out, (idx(0),)), part=part)
        out = self.tensor(base.shape, base.dtype, part)
        self._scatter(out, base, (axes, tuple(index), value), combiner, distinct)
        return out

    def _scatter(
        self,
        out: Tensor,
        base: Tensor,
        writes: tuple[tuple[Axis, ...], tuple[Expr, ...], Expr],
        combiner: str | None,
        distinct: bool = False,
    ) -> None:
        axes, index, value = writes
        if base.dtype is DType.BOOL:  # sums and products of truth values, as PyTorch has them
            combiner = {"sum": "any", "prod": "all"}.get(combiner or "", combiner)
        if combiner is not None and base.dtype.is_float8:
            raise Unsupported(f"{combiner} of {base.dtype} in place")
        value = cast(value, base.dtype)
        self.append(Scatter(out, base, axes, index, value, combiner, self.origin, distinct))

    def constant(self, value: "np.ndarray[Any, Any]", name: str = "") -> Tensor:
        """A constant tensor. name: the node's if empty."""
        wanted = self.names.unique(name or self.node)
        t = Tensor(wanted, tuple(value.shape), DType.from_numpy(value.dtype))
        part = f"const.{len(self.constants)}"
        self.constants[part] = value
        self.weights.append(Weight(t, (part,)))
        return t

    def table(self, key: Hashable, name: str, make: "Callable[[], np.ndarray[Any, Any]]") -> Tensor:
        """The constant that was made for `key`, by whichever operator asked for it first."""
        if key not in self._tables:
            self._tables[key] = self.constant(make(), name)
        return self._tables[key]

    def append(self, s: Statement) -> None:
        self.statements.append(s)


def _in_tf32(c: Compute) -> Compute:
    """A sum of products of float32 with its factors as TF32; anything else as it is, and what has no rows or no columns, as a depthwise
    convolution and a matrix times a vector: no tensor core would multiply it."""
    if not isinstance(c.body, Binary) or c.body.op != "mul":
        return c
    sides = (c.body.a, c.body.b)
    if any(not loads(x) or isinstance(x, Cast) or x.dtype is not DType.F32 for x in sides):
        return c
    found = contraction(c)
    if found is None or any(all(c.axes[p].extent == 1 for p in own) for own in (found.m, found.n)):
        return c
    return msgspec.structs.replace(c, body=Binary("mul", *(Unary("tf32", x) for x in sides)))


def load(t: Tensor, index: Sequence[Expr]) -> Load:
    return Load(t, tuple(index))


def raised(t: Tensor, index: Sequence[Expr]) -> Expr:
    """The element at `index`, cast to its compute type."""
    return cast(Load(t, tuple(index)), t.dtype.compute)


def broadcast(shape: Sequence[int], at: Sequence[Expr]) -> tuple[Expr, ...]:
    """The index into a tensor of `shape` that is broadcast (aligned at the last dimension) to `at`."""
    tail = at[len(at) - len(shape) :]
    return tuple(
        idx(0) if n == 1 and not (isinstance(i, Axis) and i.extent == 1) else i
        for n, i in zip(shape, tail, strict=True)
    )


def _wrapped(x: Scalar, dtype: DType) -> Scalar:
    span = type_range(dtype)
    if not dtype.is_int or span is None or isinstance(x, float) or span.lo <= x <= span.hi:
        return x
    return (x - span.lo) % (span.hi - span.lo + 1) + span.lo


def element(x: Operand, at: Sequence[Expr], dtype: DType) -> Expr:
    """The element of the broadcast operand at `at`, cast to `dtype`: a number beyond an integer type wraps around, as in PyTorch."""
    if isinstance(x, Tensor):
        return cast(Load(x, broadcast(x.shape, at)), dtype)
    return const(_wrapped(x, dtype), dtype)


def elementwise(
    b: Builder, operands: Sequence[Operand], f: Callable[..., Expr], dtype: DType
) -> Tensor:
    """The operator's result as `f` of its operands' elements, each cast to `dtype`."""
    return b.result(lambda *i: f(*(element(x, i, dtype) for x in operands)))


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that PyTorch broadcasts the compatible `shapes` to."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((n for n in column if n != 1), 1) for column in zip(*padded, strict=True))


def wrap(dim: int, rank: int) -> int:
    """A dimension, counted from the end if negative; a scalar has one dimension."""
    return dim + max(rank, 1) if dim < 0 else dim


def wrap_all(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Dimensions in ascending order; None and () mean all."""
    if isinstance(dims, int):
        dims = (dims,)
    if dims is None or len(dims) == 0:
        return tuple(range(rank))
    return tuple(sorted({wrap(d, rank) for d in dims if rank}))


def identity(combiner: str, dtype: DType) -> Scalar:
    """The identity element of `combiner` for `dtype`."""
    half = 2 ** (8 * dtype.itemsize - 1)
    match combiner, dtype:
        case "any" | "all", _:
            return combiner == "all"
        case "sum", _:
            return 0
        case "prod", _:
            return 1
        case "max", _ if dtype.is_float:
            return -math.inf
        case "min", _ if dtype.is_float:
            return math.inf
        case "max", _:
            return 0 if dtype in (DType.BOOL, DType.U8) else -half
        case "min", DType.BOOL:
            return True
        case "min", _:
            return 2 * half - 1 if dtype is DType.U8 else half - 1
        case _:
            raise ValueError(f"{combiner!r} has no identity")
