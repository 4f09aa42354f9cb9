"""The sizes that calls may have: what `torch.export` says of them, what a graph asserts, and the classes that get kernels of their own."""

import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import sympy
import torch
from torch.export import ExportedProgram
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges

from monotile.errors import CaptureError
from monotile.frontends.torch.sizes.asked import kept

FIXED = "monotile.fixed"  # of a graph: the `Ranges.fixed` that it was exported for
_FEW = 1 << 14  # calls of different sizes that are all looked at


class Ranges(msgspec.Struct, frozen=True):
    """Of a model's symbols: name, least, most. conditions: what else holds of them in a call, as expressions of Python. fixed: further
    symbols, by their places among those of the model for all sizes, and what they are."""

    of: tuple[tuple[str, int, int], ...] = ()
    conditions: tuple[str, ...] = ()
    fixed: tuple[tuple[int, int], ...] = ()

    def limited(self, most: Mapping[str, int]) -> "Ranges":
        """With these most."""
        ends = tuple((n, low, min(high, most.get(n, high))) for n, low, high in self.of)
        left = tuple(t for t in self.conditions if not _always(t, ends))
        return Ranges(ends, left, self.fixed)

    def values(self, text: str) -> tuple[Any, ...]:
        """Of an expression of Python: in every call that there can be; none where these are many, or it is not of these symbols
        alone."""
        return _values(text, self.of, self.conditions)


def _always(text: str, ends: tuple[tuple[str, int, int], ...]) -> bool:
    tried = _values(text, ends, ())
    return bool(tried) and all(tried)


@lru_cache(1024)
def _values(
    text: str, ends: tuple[tuple[str, int, int], ...], conditions: tuple[str, ...]
) -> tuple[Any, ...]:
    own = [x for x in ends if _names(x[0], text)]
    if math.prod(high - low + 1 for _, low, high in own) > _FEW:
        return ()
    others = [n for n, _, _ in ends if not _names(n, text)]
    tests = [t for t in conditions if not any(_names(n, t) for n in others)]
    head = f"lambda {', '.join(n for n, _, _ in own)}: "
    of, holds = (eval(head + x, _KNOWN) for x in (text, " and ".join(tests) or "True"))
    calls = itertools.product(*(range(low, high + 1) for _, low, high in own))
    try:
        return tuple(of(*at) for at in calls if holds(*at))
    except (ZeroDivisionError, NameError):  # of what data decide nothing is known
        return ()


_KNOWN = {"__builtins__": {"min": min, "max": max, "abs": abs, "float": float, "round": round}, "math": math}  # fmt: skip
_FUNCTION = re.compile(r"torch\._sym_(sqrt|cos|sin|exp|log2|tan|tanh|atan)\(")


def text_of(expr: Any) -> str:
    """As an expression of Python over the symbols' names."""
    text = PythonPrinter().doprint(expr).replace("torch.sym_float(", "float(")
    return _FUNCTION.sub(r"math.\1(", text)


def _names(name: str, text: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


NO_RANGES = Ranges()


def ranges_of(exported: ExportedProgram) -> Ranges:
    """Of the symbols in the shapes, and the numbers, that `exported` is called with, with what its graph asserts of them. A dimension is at
    least 1, also of a Dim without `min`: PyTorch traces a model as if no size were 0. Raises CaptureError for one without a most."""
    found: dict[str, tuple[int, int]] = {}
    wide: set[str] = set()  # that are dimensions
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
                if isinstance(value, torch.Tensor) and n.node.expr == symbol:
                    wide.add(str(symbol))
    ends = ((n, max(low, int(n in wide)), high) for n, (low, high) in found.items())
    fixed = exported.graph_module.meta.get(FIXED, ())
    return Ranges(tuple(ends), _conditions(exported, found), fixed).limited({})


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


def _conditions(exported: ExportedProgram, names: Collection[str]) -> tuple[str, ...]:
    """What the graph asserts of these symbols alone, and what the model asked; not that a size is not 1 because an operator asked."""
    values = [_asserted(node) for node in exported.graph.nodes]
    own = [x.node.expr for x in values if isinstance(x, torch.SymBool)]
    own = [x for x in own if not (isinstance(x, sympy.Ne) and 1 in x.args)]
    every = [x for x in (*own, *kept(exported)) if x.free_symbols]
    known = [x for x in every if all(str(s) in names for s in x.free_symbols)]
    return tuple(dict.fromkeys(map(text_of, known)))


def _asserted(node: torch.fx.Node) -> Any:
    if node.op != "call_function" or node.target is not torch.ops.aten._assert_scalar.default:
        return None
    value = node.args[0]
    return value.meta.get("val") if isinstance(value, torch.fx.Node) else value


UNBOUNDED = 1 << 31  # of a dimension: what PyTorch calls unbounded is more


def _ends(known: ValueRanges[Any] | None, what: str) -> tuple[int, int]:
    if known is None or not known.upper.is_Integer or int(known.upper) >= UNBOUNDED:
        raise CaptureError(
            f"{what} has no upper bound: name one, such as torch.export.Dim(\"length\", max=512), because memory is laid out for"
            " the largest size"
        )  # fmt: skip
    return max(int(known.lower), 0), int(known.upper)


CLASSES = 6  # of sizes, at most
SHORT = 32  # a size up to which one class does, where the most is so much that halves do not come down to it


def size_classes(ranges: Ranges, most: int = CLASSES) -> list[dict[str, int]]:
    """What symbols are at most in each class of sizes that gets a kernel of its own, ascending; the last is for all. most: of classes.

    A kernel that is cut for many rows takes longer for few: its tiles are large, and its stages have fewer tasks than there are workers.
    """
    each = max(1, int(most ** (1 / max(1, len(ranges.of)))))
    ways = [_steps(low, high, each) for _, low, high in ranges.of]
    names = [n for n, _, _ in ranges.of]
    return [dict(zip(names, x, strict=True)) for x in itertools.product(*ways)]


def classes_of(ranges: Ranges, several: bool, courses: int = 1) -> Sequence[Mapping[str, int]]:
    """Of the sizes that a model is for, if there are to be several. courses: how often it is exported: where a size of 1 is apart, it makes up for a
    class."""
    return size_classes(ranges, CLASSES - (courses > 1)) if several else [{}]


def _steps(low: int, high: int, count: int) -> list[int]:
    """Up to so many numbers from `low` to `high`, each about the same part of the next: half of it where that comes down to few."""
    least = max(low, min(high >> (count - 1), SHORT), 1)
    ratio = max(2.0, (high / least) ** (1 / max(count - 1, 1)))
    found = {max(low, round(high / ratio**k)) for k in range(count)}
    return sorted(found)
