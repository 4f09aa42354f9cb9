"""Elements beyond a size that may be infinite or NaN: a kernel computes them, although nobody asks for them, and there a quotient may be by a sum of nothing,
and a logarithm that of 0. Such an element times 0 is not 0. Where a size is 0, all elements are beyond it, and their maximum, which a softmax subtracts, is
infinite."""

from collections.abc import Set as AbstractSet

from monotile.analysis.dead import Given, value_where
from monotile.frontends.torch.sizes.size import Size
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Symbolic,
    SymbolicNumber,
    Unary,
    axes_of,
    loads,
    walk,
)
from monotile.ir.program import Compute


class Poles:
    """The poles of the tensors of a Program, whose statements are learned in order."""

    def __init__(self) -> None:
        self._dims = dict[str, set[int]]()  # by tensor, where its elements beyond may be poles
        self._positive = set[str]()  # tensors
        # By tensor, the symbols of sizes that may be 0 along which it was summed, or is a maximum, which of nothing is infinite.
        self._sums, self._extrema = dict[str, set[str]](), dict[str, set[str]]()

    def within(self, body: Expr, a: Axis, given: Given) -> bool:
        """Whether elements of `body` beyond the size of `a` may be poles. given: the known values there."""
        n = a.extent
        nothing = _symbols(n) if isinstance(n, Size) and not n.low else set[str]()
        return any(
            self._is_pole(x, a, given, nothing)
            or (
                isinstance(x, Load) and not nothing.isdisjoint(self._extrema.get(x.tensor.name, ()))
            )
            for x in walk(body)
        )

    def learn(self, c: Compute, dims: set[int]) -> None:
        """dims: the dimensions of its result beyond whose sizes are poles."""
        if dims:
            self._dims[c.out.name] = dims
        sizes = [a.extent for a in c.reduce if isinstance(a.extent, Size) and not a.extent.low]
        empty = set[str]().union(*map(_symbols, sizes)) if c.out.dtype.is_float else set[str]()
        if c.combiner == "sum":
            self._sums[c.out.name] = empty
            empty = set[str]()
        elif isinstance(c.body, Binary) and c.body.op == c.combiner and _number(c.body.b) != -1.0:
            empty = set[str]()  # at least that number
        self._extrema[c.out.name] = empty.union(
            *(self._extrema.get(x.tensor.name, ()) for x in loads(c.body))
        )
        if c.combiner in (None, "sum", "max", "min", "prod") and self._is_positive(c.body):
            self._positive.add(c.out.name)

    def _is_pole(self, x: Expr, a: Axis, given: Given, nothing: AbstractSet[str]) -> bool:
        match x:
            case Load(t, index):
                return any(index[p] == a for p in self._dims.get(t.name, ()))
            case Binary("pow", _, power) if _number(power) >= 0:
                return False
            case Binary("div", _, q) | Binary("pow", q, _) | Unary("rsqrt" | "log" | "log2", q):
                if any(not nothing.isdisjoint(self._sums.get(y.tensor.name, ())) for y in loads(q)):
                    return not self._is_positive(q, nothing)
                return a in axes_of(q) and not value_where(q, given) and not self._is_positive(q)
            case _:
                return False

    def _is_positive(self, x: Expr, nothing: AbstractSet[str] = frozenset()) -> bool:
        """Whether it is positive by its form, as a sum of exponentials, or a norm with an epsilon. nothing: symbols of sizes that are 0."""
        match x:
            case Unary("exp" | "exp2"):
                return True
            case Binary("add" | "max", a, b):
                return any(_number(s) > 0 or self._is_positive(s, nothing) for s in (a, b))
            case Unary("sqrt", a) | Cast(a):
                return self._is_positive(a, nothing)
            case Load(t):
                own = self._sums.get(t.name, set[str]())
                return t.name in self._positive and own.isdisjoint(nothing)
            case _:
                return False


def _symbols(n: Size) -> set[str]:
    return {str(s) for s in n.expr.free_symbols}


def _number(x: Expr) -> float:
    """A literal number; -1 for anything else."""
    match x:
        case Const(Symbolic() | SymbolicNumber() | str()):
            return -1.0
        case Const(value):
            return float(value)
        case _:
            return -1.0
