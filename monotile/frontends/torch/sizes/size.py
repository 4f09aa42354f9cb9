"""Symbolic sizes: PyTorch's symbolic integers as ints, the upper bound, that remember their expression.

A `Size` is an int, the most that the size can be, so that a shape with sizes is a shape; what is computed from it stays symbolic. Where a
decision needs more than its bounds, `Unsupported` says so.
"""

import copy
import math
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from monotile.errors import CaptureError
from monotile.frontends.builder import Unsupported
from monotile.frontends.torch.sizes.ranges import NO_RANGES, Ranges
from monotile.frontends.torch.sizes.ranges import text_of as printed
from monotile.ir.expr import Symbolic, SymbolicNumber

Real = int | float


class Size(Symbolic):
    """A symbolic size. expr: over the symbols of the model's dimensions, expanded. low, high: its range, both included; the int is `high`. calls: the
    possible combinations of sizes."""

    expr: sympy.Expr
    low: int
    calls: Ranges

    def __new__(cls, expr: sympy.Expr, low: int, high: int, calls: Ranges = NO_RANGES) -> "Size":
        made = super().__new__(cls, high)
        made.expr, made.low, made.calls = expr, low, calls
        return made

    @property
    def high(self) -> int:
        return int(self)

    def __repr__(self) -> str:
        return f"{self.expr} <= {int(self)}"

    def __eq__(self, other: object) -> bool:
        """Whether both are equal in every call; a size never equals a number."""
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
        return _made(self.expr + expr_of(other), self.low + low, self.high + high, self.calls)

    def __radd__(self, other: Real) -> int:
        return self + other

    def __neg__(self) -> int:
        return _made(-self.expr, -self.high, -self.low, self.calls)

    def __sub__(self, other: Real) -> int:
        low, high = bounds(other)
        return _made(self.expr - expr_of(other), self.low - high, self.high - low, self.calls)

    def __rsub__(self, other: Real) -> int:
        low, high = bounds(other)
        return _made(expr_of(other) - self.expr, low - self.high, high - self.low, self.calls)

    def __mul__(self, other: Real) -> int:
        ends = [a * b for a in bounds(self) for b in bounds(other)]
        return _made(self.expr * expr_of(other), min(ends), max(ends), self.calls)

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
        most = min(high - 1, self.high) if self.low >= 0 else high - 1
        return _made(_remainder(self, other), 0, most, self.calls)

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
        return _made(_remainder(other, self), 0, self.high - 1, self.calls)

    def __divmod__(self, other: object) -> Any:
        raise self._no_number()

    def _no_number(self) -> Unsupported:
        return Unsupported(f"a number is computed from the size {self.expr}")

    def __float__(self) -> float:
        raise self._no_number()


def bounds(x: Real) -> tuple[Any, Any]:
    """The lower and the upper bound, both included."""
    return (x.low, x.high) if isinstance(x, Size) else (x, x)


def expr_of(x: Real) -> Any:
    """The expression over symbols."""
    if isinstance(x, Size):
        return x.expr
    if not math.isfinite(x) or x != int(x):
        raise Unsupported(f"a number is computed from a size and {x}")
    return sympy.Integer(int(x))


def text_of(x: Real) -> str:
    """A Python expression over the symbols' names."""
    return printed(x.expr) if isinstance(x, Size) else repr(x)


def _made(expr: Any, low: float, high: float, calls: Ranges) -> int:
    """A size `expr`. low, high: its range if `calls` gives no better one. For expressions that are no polynomials all calls are enumerated."""
    expr = sympy.expand(expr)
    if expr.is_Integer:
        return int(expr)
    if known := _sum(expr, calls):
        low, high = max(low, known[0]), min(high, known[1])
    elif not expr.is_polynomial() and (tried := calls.values(printed(expr))):
        low, high = max(low, min(tried)), min(high, max(tried))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise CaptureError(f"the size {expr} has no bound")
    return int(low) if low == high else Size(expr, int(low), int(high), calls)


def _sum(expr: Any, calls: Ranges) -> tuple[int, int] | None:
    """The range of a sum of multiples of sizes; each size counts once."""
    ends = {n: (low, high) for n, low, high in calls.of} | {"1": (1, 1)}
    least = most = 0
    for size, k in expr.as_coefficients_dict().items():
        known = ends.get(str(size))
        if known is None or not k.is_Integer:
            return None
        low, high = sorted(int(k) * x for x in known)
        least, most = least + low, most + high
    return least, most


def _divided(a: Real, b: Real) -> int:
    """a // b."""
    low, high = bounds(b)
    if low <= 0:
        raise Unsupported(f"{text_of(a)} is divided by what may be 0")
    ends = [x // y for x in bounds(a) for y in (low, high)]
    calls = next(x.calls for x in (a, b) if isinstance(x, Size))
    return _made(_whole(expr_of(a), expr_of(b)), min(ends), max(ends), calls)


def _remainder(a: Real, b: Real) -> Any:
    """a % b, which is not negative."""
    return (Mod if bounds(a)[0] >= 0 else PythonMod)(expr_of(a), expr_of(b))


def _whole(a: Any, b: Any) -> Any:
    """a // b: an exact quotient of products stays a product."""
    exact = sympy.cancel(a / b)
    whole = exact.is_polynomial() and all(
        c.is_Integer for c in sympy.Poly(exact, *exact.free_symbols).coeffs()
    ) if exact.free_symbols else exact.is_Integer  # fmt: skip
    return exact if whole else FloorDiv(a, b)


def least(a: int, b: int) -> int:
    """The minimum, also if a call decides which one it is."""
    return _end(a, b, Min)


def most(a: int, b: int) -> int:
    """The maximum."""
    return _end(a, b, Max)


def _end(a: int, b: int, of: Any) -> int:
    low, high = bounds(a - b)
    if low >= 0 or high <= 0:
        return a if (low >= 0) == (of is Max) else b
    ends = [*zip(bounds(a), bounds(b), strict=True)]
    low, high = map(max if of is Max else min, ends)
    calls = next(x.calls for x in (a, b) if isinstance(x, Size))
    return _made(of(expr_of(a), expr_of(b)), low, high, calls)


class Number(SymbolicNumber):
    """A number that depends on sizes. It is a literal of the Program; a lowering cannot compute with it."""

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


class Shapes:
    """Converts PyTorch's shapes to ints and Sizes within `ranges`. A symbol with one value becomes that number."""

    def __init__(self, ranges: Ranges = NO_RANGES) -> None:
        self._calls = ranges.allowed()
        of = self._calls.of
        self._ranges = {n: ValueRanges(low, high) for n, low, high in of}
        self._fixed: dict[str, Any] = {n: low for n, low, high in of if low == high}
        self._admitted = set[str]()

    def nested(self) -> "Shapes":
        """For a body inside: what is registered there is unknown outside. Two bodies may have one symbol for the rows that each selects."""
        inner = copy.copy(self)
        inner._ranges, inner._fixed = dict(self._ranges), dict(self._fixed)
        return inner

    def admit(self, n: int | torch.SymInt, most: int) -> None:
        """Registers the symbols of a data-dependent size, with the upper bound `most`."""
        if not isinstance(n, torch.SymInt):
            return
        for name in sorted(map(str, n.node.expr.free_symbols)):
            if name in self._ranges or name in self._fixed:
                continue
            own = f"{name}_{len(self._admitted)}" if name in self._admitted else name
            if own != name:  # another body's
                self._fixed[name] = sympy.Symbol(own, integer=True)
            self._admitted.add(own)
            self._ranges[own] = ValueRanges(0, most)

    def is_new(self, n: int | torch.SymInt) -> bool:
        """Whether a symbol of the size is not registered."""
        named = map(str, n.node.expr.free_symbols if isinstance(n, torch.SymInt) else ())
        return any(x not in self._ranges and x not in self._fixed for x in named)

    def equate(self, n: torch.SymInt, expr: Any) -> None:
        """Registers that the size, a single symbol, equals `expr` of other symbols."""
        self._fixed[str(n.node.expr)] = expr

    def number(self, x: torch.SymInt | torch.SymFloat) -> float:
        """A Size, or a Number. Raises Unsupported if there is no Python expression for it."""
        if isinstance(x, torch.SymInt):
            return self._found(x, -math.inf)
        known = self._ranges.keys() | self._fixed.keys()
        unknown = {str(s) for s in x.node.expr.free_symbols} - known
        if unknown:
            raise CaptureError(f"the number {x.node.expr} depends on data")
        text = printed(self._plain(x.node.expr))
        if "torch" in text or "OpaqueUnaryFn" in text:
            raise Unsupported(f"the number {x.node.expr} is computed from sizes")
        return Number(text)

    def size(self, n: int | torch.SymInt) -> int:
        """The size as an int or a Size. Raises CaptureError for an unregistered data-dependent size."""
        return self._found(n, 0) if isinstance(n, torch.SymInt) else n

    def _found(self, n: torch.SymInt, least: float) -> int:
        """least: its lower bound, whatever PyTorch knows."""
        expr = self._plain(n.node.expr)
        if expr.is_Integer:
            return int(expr)
        symbols = {x: self._ranges.get(str(x)) for x in expr.free_symbols}
        if None in symbols.values():
            raise CaptureError(
                f"the size {expr} depends on data, and nothing bounds it: pass it where the operator takes it (output_size of"
                " repeat_interleave), or compute on tensors of known sizes with a mask"
            )
        known: Any = bound_sympy(expr, symbols)  # pyright: ignore[reportArgumentType]
        return _made(expr, max(float(known.lower), least), float(known.upper), self._calls)

    def _plain(self, expr: Any) -> Any:
        if self._fixed:
            expr = expr.subs(
                {s: self._fixed[str(s)] for s in expr.free_symbols if str(s) in self._fixed}
            )
        return expr.replace(FloorDiv, _whole) if expr.has(FloorDiv) else expr


STATIC = Shapes()
