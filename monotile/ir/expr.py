"""Scalar expressions: they define one element of a Compute.

Semantics
- An expression has one type. Both sides of a Binary have the same type; nothing is promoted silently.
- Index arithmetic is int64. Integers wrap (two's complement). `floordiv` and `mod` round towards
  minus infinity, `truncdiv` and `rem` towards zero; a zero integer divisor gives 0, no trap.
- Floating point is IEEE; `max` and `min` return NaN if either side is NaN.
- `Select` evaluates only the side it takes, `and` / `or` evaluate left to right and stop early:
  a Load on the other side need not be in bounds.
- A Load that is evaluated must be in bounds. An index computed from loaded data is checked when the
  kernel runs; every other index is guaranteed by the compiler and checked by the verifier where it can be.
- `Cast` to an integer truncates towards zero, to `bool` tests for non-zero, to a float rounds to nearest even.
- 8-bit floats are Loads, Selects, literals and sides of a Cast, nothing else. A Cast to one goes by way of float32. What is
  too large becomes infinity in float8_e5m2 and NaN in the others. float8_e8m0fnu drops the sign; what lies halfway goes up,
  and below 2**-127 all becomes 2**-127: a zero, too, also as a literal.
- Every Axis in a body is an axis of its Compute or Scatter, or the axis of an enclosing Loop.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from math import copysign

import msgspec

from monotile.ir.dtype import DType

COMPARE = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
LOGIC = frozenset({"and", "or"})  # bool only, short-circuit
ARITHMETIC = frozenset({"add", "sub", "mul", "min", "max"})
FLOAT_BINARY = frozenset({"div", "pow", "atan2", "copysign", "hypot", "nextafter", "fmod"})
INT_BINARY = frozenset({"floordiv", "mod", "truncdiv", "rem", "ipow"})
BITS = frozenset(
    {"bitand", "bitor", "bitxor", "shl", "shr"}
)  # integers and bool (no shifts on bool)
# philox: of int64 alone, 64 random bits at counter a under key b: the first two words of Philox 4x32-10 (Salmon et al., SC'11) at counter (low a,
# high a, 0, 0) with key (low b, high b), the first one lowest.
BINARY = COMPARE | LOGIC | ARITHMETIC | FLOAT_BINARY | INT_BINARY | BITS | {"philox"}

FLOAT_UNARY = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh"
    " asinh acosh atanh erf erfc lgamma floor ceil trunc round".split()  # round: half to even
) | {"logistic", "one_plus_erf", "cospi"}  # 1 / (1 + exp(-x)), 1 + erf(x), cos(pi x)
# not: logical on bool, bits on integers.
# Of float32: tf32, the value, of which a product may leave out the last 13 bits; to_tf32, the nearest value without them (ties away from
# zero); is_tf32, a value that is known to have none. Of uint8: ascends, a byte of two pairs of 2-bit numbers (the first one in the low bits), of which each
# pair is known to ascend.
TF32_FACTORS = ("tf32", "is_tf32")
# bits: of a float, its bits as an integer of its size. f16_of_bits and the like: the float that has these bits. Of a NaN in 8 bits only the
# sign is kept.
BITS_OF = {
    **dict.fromkeys((DType.F8E4M3, DType.F8E5M2, DType.F8E8M0), DType.I8),
    **dict.fromkeys((DType.F16, DType.BF16), DType.I16),
    DType.F32: DType.I32,
    DType.F64: DType.I64,
}
OF_BITS = {f"{t.name.lower()}_of_bits": t for t in BITS_OF}
UNARY = (
    FLOAT_UNARY
    | {"neg", "abs", "not", "isnan", "isinf", "to_tf32", "ascends", *TF32_FACTORS}
    | {"bits", *OF_BITS}
)
_RESULTS = {"isnan": DType.BOOL, "isinf": DType.BOOL, **OF_BITS}  # of a Unary; others keep the type

COMBINERS = frozenset({"sum", "prod", "max", "min", "any", "all", "argmax", "argmin"})


class Symbolic(int):
    """A size that only a call knows; as an int, the most that it can be. A front end builds with it: extents, and literals, of which it makes
    Loads before it gives the Program away (`frontends/torch/sizes/bind.py`)."""


class SymbolicNumber(float):
    """A number that only a call knows, as an expression of Python over its sizes; as a float, nothing."""

    text: str


class Const(msgspec.Struct, frozen=True, tag="const", eq=False):
    """A literal. Infinities and NaN are strings ("inf", "-inf", "nan"), so that JSON can represent them."""

    value: bool | int | float | str
    dtype: DType

    def __eq__(self, other: object) -> bool:
        """Equal type and value; 0.0 and -0.0 differ, so that neither replaces the other."""
        if not isinstance(other, Const) or self.dtype is not other.dtype:
            return False
        x, y = self.value, other.value
        if isinstance(x, float) and isinstance(y, float) and x == 0.0 == y:
            return copysign(1, x) == copysign(1, y)
        return x == y

    def __hash__(self) -> int:
        return hash((self.value, self.dtype))


class Axis(msgspec.Struct, frozen=True, tag="axis", cache_hash=True):
    """An integer that runs from 0 to extent - 1. int64."""

    name: str
    extent: int

    @property
    def dtype(self) -> DType:
        return DType.I64


class Tensor(msgspec.Struct, frozen=True, cache_hash=True):
    """A named value, row-major: two tensors with one name are the same value."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """Number of elements."""
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each dimension (row-major)."""
        out: list[int] = []
        step = 1
        for extent in reversed(self.shape):
            out.append(step)
            step *= extent
        return tuple(reversed(out))


class SizeTensor(Tensor, frozen=True, cache_hash=True):
    """A scalar int64 input that is a size of the call, from `least` to `most`; or float64, what is computed from sizes. The launch has it by value:
    nobody has to wait before it is read."""

    least: int = 0
    most: int = 0


class CountTensor(Tensor, frozen=True, cache_hash=True):
    """A scalar int64 that a call computes from its data, and that says how much of an axis is live. usual: what it mostly is."""

    usual: int = 0


class MaskTensor(Tensor, frozen=True, cache_hash=True):
    """Bools of which most are false, and what is false worth leaving out: somebody has stated so. `transform/sparse` makes plain Tensors of them."""


class Load(msgspec.Struct, frozen=True, tag="load", cache_hash=True):
    """The element of `tensor` at `index`, one int64 expression per dimension."""

    tensor: Tensor
    index: tuple["Expr", ...]

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype


class Unary(msgspec.Struct, frozen=True, tag="unary", cache_hash=True):
    op: str
    x: "Expr"

    @property
    def dtype(self) -> DType:
        if self.op == "bits":
            return BITS_OF[self.x.dtype]
        return _RESULTS.get(self.op) or self.x.dtype


class Binary(msgspec.Struct, frozen=True, tag="binary", cache_hash=True):
    op: str
    a: "Expr"
    b: "Expr"

    @property
    def dtype(self) -> DType:
        return DType.BOOL if self.op in COMPARE else self.a.dtype


class Select(msgspec.Struct, frozen=True, tag="select", cache_hash=True):
    """`then` where `cond` (bool), else `otherwise`."""

    cond: "Expr"
    then: "Expr"
    otherwise: "Expr"

    @property
    def dtype(self) -> DType:
        return self.then.dtype


class Cast(msgspec.Struct, frozen=True, tag="cast", cache_hash=True):
    x: "Expr"
    dtype: DType


Expr = Const | Axis | Load | Unary | Binary | Select | Cast


def children(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Const() | Axis():
            return ()
        case Load():
            return e.index
        case Unary() | Cast():
            return (e.x,)
        case Binary():
            return (e.a, e.b)
        case Select():
            return (e.cond, e.then, e.otherwise)


def rebuild(e: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """`e` with `f` applied to its children; `e` itself if no child changed."""
    match e:
        case Const() | Axis():
            return e
        case Load(tensor, index):
            new = tuple(f(i) for i in index)
            return e if all(a is b for a, b in zip(new, index, strict=True)) else Load(tensor, new)
        case Unary(op, x):
            y = f(x)
            return e if y is x else Unary(op, y)
        case Cast(x, dtype):
            y = f(x)
            return e if y is x else Cast(y, dtype)
        case Binary(op, a, b):
            na, nb = f(a), f(b)
            return e if na is a and nb is b else Binary(op, na, nb)
        case Select(c, t, o):
            nc, nt, no = f(c), f(t), f(o)
            return e if nc is c and nt is t and no is o else Select(nc, nt, no)


def walk(e: Expr) -> Iterator[Expr]:
    """Every node of `e`, parents first."""
    stack = [e]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


def conjuncts(e: Expr) -> Iterator[Expr]:
    """What all has to hold for the condition `e` to."""
    match e:
        case Binary("and", a, b):
            yield from conjuncts(a)
            yield from conjuncts(b)
        case _:
            yield e


@functools.lru_cache(maxsize=1 << 15)
def loads(e: Expr) -> tuple[Load, ...]:
    """Every Load in `e`, in order, including those inside indices of others."""
    inner = [x for c in children(e) for x in _loads(c)]
    return (e, *inner) if isinstance(e, Load) else tuple(inner)


def _loads(e: Expr) -> tuple[Load, ...]:
    return () if isinstance(e, Const | Axis) else loads(e)


def known(e: Expr) -> bool:
    """Whether `e` depends on axes, literals and sizes alone."""
    return all(isinstance(x.tensor, SizeTensor) for x in loads(e))


@functools.lru_cache(maxsize=1 << 15)
def axes_of(e: Expr) -> frozenset[Axis]:
    """Every Axis in `e`."""
    if isinstance(e, Axis):
        return frozenset({e})
    return frozenset[Axis]().union(*map(_axes_of, children(e)))


def _axes_of(e: Expr) -> Iterable[Axis]:
    if isinstance(e, Axis):
        return (e,)
    return () if isinstance(e, Const) else axes_of(e)


def substitute(e: Expr, axes: dict[str, Expr]) -> Expr:
    """`e` with every Axis whose name is in `axes` replaced, simultaneously."""

    def go(node: Expr) -> Expr:
        if isinstance(node, Axis):
            return axes.get(node.name, node)
        return rebuild(node, go)

    return go(e)


def map_loads(e: Expr, f: Callable[[Load], Expr]) -> Expr:
    """`e` with every Load replaced by `f` of it, innermost first (indices before the Load itself)."""

    def go(node: Expr) -> Expr:
        new = rebuild(node, go)
        return f(new) if isinstance(new, Load) else new

    return go(e)


# Builders. They fold constants of index arithmetic, so that lowerings can be written directly.


def const(value: bool | int | float, dtype: DType) -> Const:
    if isinstance(value, Symbolic | SymbolicNumber):
        return Const(value, dtype)
    if dtype is DType.BOOL:
        return Const(bool(value), dtype)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return Const("nan" if value != value else "inf" if value > 0 else "-inf", dtype)
    if dtype.is_float:
        return Const(float(value), dtype)
    return Const(int(value), dtype)


def idx(value: int) -> Const:
    """An int64 literal, for indices."""
    return Const(value, DType.I64)


def binary(op: str, a: Expr, b: Expr) -> Expr:
    """Binary, with int64 literals folded and neutral 0 and 1 dropped."""
    if a.dtype is DType.I64:
        x = a.value if isinstance(a, Const) else None
        y = b.value if isinstance(b, Const) else None
        if isinstance(x, int) and isinstance(y, int):
            match op:
                case "add":
                    return idx(x + y)
                case "sub":
                    return idx(x - y)
                case "mul":
                    return idx(x * y)
                case "floordiv" if y:
                    return idx(x // y)
                case "mod" if y:
                    return idx(x % y)
                case _:
                    pass
        if op == "add" and x == 0:
            return b
        if op in ("add", "sub") and y == 0:
            return a
        if op == "mul" and (x == 1 or y == 1):
            return b if x == 1 else a
        if op == "mul" and (x == 0 or y == 0):
            return idx(0)
        if op == "floordiv" and y == 1:
            return a
        if op == "mod" and y == 1:
            return idx(0)
    return Binary(op, a, b)


def add(a: Expr, b: Expr) -> Expr:
    return binary("add", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return binary("sub", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return binary("mul", a, b)


def cast(x: Expr, dtype: DType) -> Expr:
    return x if x.dtype is dtype else Cast(x, dtype)
