"""Sizes that a call decides: PyTorch's symbolic integers as bounds that remember what they bound.

A `Size` is an int, the most that the size can be, so that a shape with sizes is a shape; what is computed from it stays symbolic. Where a
decision needs more than its bounds, `Unsupported` says so.
"""

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import sympy
import torch
from torch.export import ExportedProgram
from torch.utils._sympy.functions import FloorDiv, Mod
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from monotile.errors import CaptureError
from monotile.frontends.builder import Unsupported
from monotile.ir.expr import Symbolic, SymbolicNumber

Real = int | float


class Size(Symbolic):
    """expr: over the symbols of the model's dimensions, expanded. low, high: what it lies between, both included; the int is `high`."""

    expr: sympy.Expr
    low: int

    def __new__(cls, expr: sympy.Expr, low: int, high: int) -> "Size":
        made = super().__new__(cls, high)
        made.expr, made.low = expr, low
        return made

    @property
    def high(self) -> int:
        return int(self)

    def __repr__(self) -> str:
        return f"{self.expr} <= {int(self)}"

    def __eq__(self, other: object) -> bool:
        """Whether both are the same in every call: a size is never known to equal a number."""
        return isinstance(other, Size) and self.expr == other.expr

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.expr)

    def __bool__(self) -> bool:
        return self > 0

    def __lt__(self, other: Real) -> bool:
        low, high = bounds(self - other)
        if high < 0 or low >= 0:
            return high < 0
        raise Unsupported(f"what is done depends on whether {self.expr} < {text_of(other)}")

    def __gt__(self, other: Real) -> bool:
        low, high = bounds(self - other)
        if low > 0 or high <= 0:
            return low > 0
        raise Unsupported(f"what is done depends on whether {self.expr} > {text_of(other)}")

    def __ge__(self, other: Real) -> bool:
        return not self < other

    def __le__(self, other: Real) -> bool:
        return not self > other

    def __add__(self, other: Real) -> int:
        low, high = bounds(other)
        return _made(self.expr + expr_of(other), self.low + low, self.high + high)

    def __radd__(self, other: Real) -> int:
        return self + other

    def __neg__(self) -> int:
        return _made(-self.expr, -self.high, -self.low)

    def __sub__(self, other: Real) -> int:
        low, high = bounds(other)
        return _made(self.expr - expr_of(other), self.low - high, self.high - low)

    def __rsub__(self, other: Real) -> int:
        low, high = bounds(other)
        return _made(expr_of(other) - self.expr, low - self.high, high - self.low)

    def __mul__(self, other: Real) -> int:
        ends = [a * b for a in bounds(self) for b in bounds(other)]
        return _made(self.expr * expr_of(other), min(ends), max(ends))

    def __rmul__(self, other: Real) -> int:
        return self * other

    def __floordiv__(self, other: Real) -> int:
        return _divided(self, other)

    def __rfloordiv__(self, other: Real) -> int:
        return _divided(other, self)

    def __mod__(self, other: Real) -> int:
        low, high = bounds(other)
        if low <= 0:
            raise Unsupported(f"{self.expr} is divided by what may be 0")
        return _made(Mod(self.expr, expr_of(other)), 0, min(high - 1, max(self.high, 0)))

    def __truediv__(self, other: Real) -> float:
        return _quotient(self, other)

    def __rtruediv__(self, other: Real) -> float:
        return _quotient(other, self)

    def __pow__(self, *_: object) -> Any:
        raise self._no_number()

    def __rpow__(self, *_: object) -> Any:
        raise self._no_number()

    def __rmod__(self, other: Real) -> int:
        if 0 <= other < self.low:
            return int(other)
        return _made(Mod(expr_of(other), self.expr), 0, self.high - 1)

    def __divmod__(self, other: object) -> Any:
        raise self._no_number()

    def _no_number(self) -> Unsupported:
        return Unsupported(f"a number is computed from the size {self.expr}")

    def __float__(self) -> float:
        raise self._no_number()


def bounds(x: Real) -> tuple[Any, Any]:
    """What it lies between, both included."""
    return (x.low, x.high) if isinstance(x, Size) else (x, x)


def expr_of(x: Real) -> Any:
    """As an expression over symbols."""
    if isinstance(x, Size):
        return x.expr
    if not math.isfinite(x) or x != int(x):
        raise Unsupported(f"a number is computed from a size and {x}")
    return sympy.Integer(int(x))


def text_of(x: Real) -> str:
    """As an expression of Python over the symbols' names."""
    return PythonPrinter().doprint(x.expr) if isinstance(x, Size) else repr(x)


def _made(expr: Any, low: float, high: float) -> int:
    expr = sympy.expand(expr)
    return int(expr) if expr.is_Integer else Size(expr, int(low), int(high))


def _divided(a: Real, b: Real) -> int:
    """a // b. An exact quotient of products stays a product."""
    low, high = bounds(b)
    if low <= 0:
        raise Unsupported(f"{text_of(a)} is divided by what may be 0")
    ends = [x // y for x in bounds(a) for y in (low, high)]
    exact = sympy.cancel(expr_of(a) / expr_of(b))
    whole = exact.is_polynomial() and all(
        c.is_Integer for c in sympy.Poly(exact, *exact.free_symbols).coeffs()
    ) if exact.free_symbols else exact.is_Integer  # fmt: skip
    return _made(exact if whole else FloorDiv(expr_of(a), expr_of(b)), min(ends), max(ends))


class Number(SymbolicNumber):
    """A number that a call's sizes decide. It is a literal; what is computed from it in a lowering is not known."""

    def __new__(cls, text: str) -> "Number":
        made = super().__new__(cls, math.nan)
        made.text = text
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self.text == other.text

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.text)

    def _refuse(self, *_: object) -> Any:
        raise Unsupported("a number is computed from one that depends on sizes")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __pow__ = __rpow__ = _refuse
    __truediv__ = __rtruediv__ = __neg__ = __float__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __bool__ = __int__ = __abs__ = __round__ = __floor__ = __ceil__ = __trunc__ = _refuse


def _quotient(a: Real, b: Real) -> float:
    found = sympy.cancel(expr_of(a) / expr_of(b))
    return float(found) if found.is_number else Number(f"({text_of(a)}) / ({text_of(b)})")


class Ranges(msgspec.Struct, frozen=True):
    """Of a model's symbols: name, least, most."""

    of: tuple[tuple[str, int, int], ...] = ()

    def limited(self, most: Mapping[str, int]) -> "Ranges":
        """With these most."""
        return Ranges(tuple((n, low, min(high, most.get(n, high))) for n, low, high in self.of))


def ranges_of(exported: ExportedProgram) -> Ranges:
    """Of the symbols in the shapes, and the numbers, that `exported` is called with. Raises CaptureError for one without a most."""
    found: dict[str, tuple[int, int]] = {}
    for node in exported.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else (value,)
        for k, n in enumerate(shape):
            if not isinstance(n, torch.SymInt):
                continue
            for symbol in sorted(n.node.expr.free_symbols, key=str):
                known = exported.range_constraints.get(symbol) or n.node.shape_env.var_to_range.get(symbol)  # fmt: skip
                low, high = _ends(known, f"dimension {k} of {node.name}")
                found[str(symbol)] = min(low, _least(symbol, n.node.expr, exported)), high
    return Ranges(tuple((n, *ends) for n, ends in found.items()))


def _least(symbol: Any, expr: Any, exported: ExportedProgram) -> int:
    """What a symbol is at least, by what was said of the size that is computed from it: of the symbol alone PyTorch says 2 where it may be 1."""
    said: Any = exported.range_constraints.get(expr)
    slope = expr.coeff(symbol)
    rest = sympy.expand(expr - slope * symbol)
    if said is None or not (
        slope.is_Integer and rest.is_Integer and slope > 0 and said.lower.is_Integer
    ):
        return UNBOUNDED
    return max(0, math.ceil((int(said.lower) - int(rest)) / int(slope)))


CLASSES = 6  # of sizes, at most
SHORT = 32  # a size up to which one class does, where the most is so much that halves do not come down to it


def size_classes(ranges: Ranges) -> list[dict[str, int]]:
    """What symbols are at most in each class of sizes that gets a kernel of its own, ascending; the last is for all.

    A kernel that is cut for many rows takes longer for few: its tiles are large, and its stages have fewer tasks than there are workers.
    """
    each = max(1, int(CLASSES ** (1 / max(1, len(ranges.of)))))
    ways = [_steps(low, high, each) for _, low, high in ranges.of]
    names = [n for n, _, _ in ranges.of]
    return [dict(zip(names, x, strict=True)) for x in itertools.product(*ways)]


def _steps(low: int, high: int, count: int) -> list[int]:
    """Up to so many numbers from `low` to `high`, each about the same part of the next: half of it where that comes down to few."""
    least = max(low, min(high >> (count - 1), SHORT), 1)
    ratio = max(2.0, (high / least) ** (1 / max(count - 1, 1)))
    found = {max(low, round(high / ratio**k)) for k in range(count)}
    return sorted(found)


UNBOUNDED = 1 << 31  # of a dimension: what PyTorch calls unbounded is more


def _ends(known: ValueRanges[Any] | None, what: str) -> tuple[int, int]:
    if known is None or not known.upper.is_Integer or int(known.upper) >= UNBOUNDED:
        raise CaptureError(
            f"{what} has no upper bound: name one, such as torch.export.Dim(\"length\", max=512), because memory is laid out for"
            " the largest size"
        )  # fmt: skip
    return max(int(known.lower), 0), int(known.upper)


class Shapes:
    """What PyTorch's shapes are: ints, and Sizes within `ranges`. A symbol of one value is that number."""

    def __init__(self, ranges: Ranges | None = None) -> None:
        of = () if ranges is None else ranges.of
        self._ranges = {n: ValueRanges(low, high) for n, low, high in of}
        self._fixed = {n: low for n, low, high in of if low == high}

    def admit(self, n: int | torch.SymInt, most: int) -> None:
        """The symbols of a size that data decide, from here on; `most`: what it is at most."""
        if isinstance(n, torch.SymInt):
            for symbol in n.node.expr.free_symbols:
                self._ranges.setdefault(str(symbol), ValueRanges(0, most))

    def number(self, x: torch.SymInt | torch.SymFloat) -> float:
        """A Size, or a Number. Raises Unsupported for what has no expression of Python."""
        if isinstance(x, torch.SymInt):
            return self.size(x)
        unknown = {str(s) for s in x.node.expr.free_symbols} - self._ranges.keys()
        if unknown:
            raise CaptureError(f"the number {x.node.expr} depends on data")
        text = PythonPrinter().doprint(self._plain(x.node.expr))
        text = text.replace("torch.sym_float(", "float(")
        text = re.sub(r"torch\._sym_(sqrt|cos|sin|exp|log2|tan|tanh|atan)\(", r"math.\1(", text)
        if "torch" in text or "OpaqueUnaryFn" in text:
            raise Unsupported(f"the number {x.node.expr} is computed from sizes")
        return Number(text)

    def size(self, n: int | torch.SymInt) -> int:
        """Raises CaptureError for a size that depends on data."""
        if not isinstance(n, torch.SymInt):
            return n
        expr = self._plain(n.node.expr)
        if expr.is_Integer:
            return int(expr)
        symbols = {x: self._ranges.get(str(x)) for x in expr.free_symbols}
        if None in symbols.values():
            raise CaptureError(f"the size {expr} depends on data")
        ends: Any = bound_sympy(expr, symbols)  # pyright: ignore[reportArgumentType]
        low, high = max(math.floor(float(ends.lower)), 0), math.ceil(float(ends.upper))
        return high if low == high else _made(expr, low, high)

    def _plain(self, expr: Any) -> Any:
        if not self._fixed:
            return expr
        return expr.subs(
            {s: self._fixed[str(s)] for s in expr.free_symbols if str(s) in self._fixed}
        )


NO_RANGES = Ranges()
STATIC = Shapes()
