"""The ranges of symbolic sizes, from `torch.export` and the assertions of a graph, and the size classes that get kernels of their own."""

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
from monotile.frontends.torch.sizes.guards import guards_of

FIXED = "monotile.fixed"  # metadata of a graph: the `Ranges.fixed` that it was exported for
_MAX_ENUMERATED = 1 << 14  # of combinations of sizes that are enumerated


class Ranges(msgspec.Struct, frozen=True):
    """The ranges of a model's symbols: name, lower bound, upper bound. conditions: guards, as Python expressions. fixed: symbols with a fixed value, by
    their positions among the symbols of the model for all sizes."""

    of: tuple[tuple[str, int, int], ...] = ()
    conditions: tuple[str, ...] = ()
    fixed: tuple[tuple[int, int], ...] = ()

    def limited(self, most: Mapping[str, int]) -> "Ranges":
        """The ranges with these upper bounds."""
        ends = tuple((n, low, min(high, most.get(n, high))) for n, low, high in self.of)
        left = tuple(t for t in self.conditions if not _always(t, ends))
        return Ranges(ends, left, self.fixed)

    def allowed(self) -> "Ranges":
        """The ranges without sizes at their ends that the conditions exclude: a call with these is told which condition it breaks. A size
        that has to be one number stays a size."""
        tried = ((x, self.values(x[0])) for x in self.of)
        ends = tuple((x[0], min(v), max(v)) if len(v) > 1 else x for x, v in tried)
        return msgspec.structs.replace(self, of=ends)

    def equal_to(self, name: str) -> frozenset[str]:
        """The symbols that the conditions make equal to this one, itself among them: PyTorch may give dimensions of one Dim several."""
        names = {n for n, _, _ in self.of}
        sides = (frozenset(t.split(" == ")) for t in self.conditions)
        pairs = [x for x in sides if len(x) == 2 and x <= names]
        found = {name}
        for _ in pairs:
            found.update(*(x for x in pairs if x & found))
        return frozenset(found)

    def values(self, text: str) -> tuple[Any, ...]:
        """The values of a Python expression for all possible sizes; empty if these are too many, or if the expression has other symbols."""
        return _values(text, self.of, self.conditions)


def _always(text: str, ends: tuple[tuple[str, int, int], ...]) -> bool:
    tried = _values(text, ends, ())
    return bool(tried) and all(tried)


@lru_cache(1024)
def _values(
    text: str, ends: tuple[tuple[str, int, int], ...], conditions: tuple[str, ...]
) -> tuple[Any, ...]:
    own = [x for x in ends if _names(x[0], text)]
    if math.prod(high - low + 1 for _, low, high in own) > _MAX_ENUMERATED:
        return ()
    others = [n for n, _, _ in ends if not _names(n, text)]
    tests = [t for t in conditions if not any(_names(n, t) for n in others)]
    head = f"lambda {', '.join(n for n, _, _ in own)}: "
    of, holds = (eval(head + x, _KNOWN) for x in (text, " and ".join(tests) or "True"))
    calls = itertools.product(*(range(low, high + 1) for _, low, high in own))
    try:
        return tuple(of(*at) for at in calls if holds(*at))
    except (ZeroDivisionError, NameError):  # data-dependent sizes are unknown
        return ()


_KNOWN = {"__builtins__": {"min": min, "max": max, "abs": abs, "float": float, "round": round}, "math": math}  # fmt: skip
_FUNCTION = re.compile(r"torch\._sym_(sqrt|cos|sin|exp|log2|tan|tanh|atan)\(")


def text_of(expr: Any) -> str:
    """A Python expression over the symbols' names."""
    text = PythonPrinter().doprint(expr).replace("torch.sym_float(", "float(")
    return _FUNCTION.sub(r"math.\1(", text)


def _names(name: str, text: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


NO_RANGES = Ranges()


def ranges_of(exported: ExportedProgram) -> Ranges:
    """The ranges of the symbols in the arguments of `exported`, with the assertions of its graph. A dimension is at least 1, also for a Dim without `min`:
    PyTorch traces a model as if no size were 0. Raises CaptureError for a symbol without an upper bound."""
    found: dict[str, tuple[int, int]] = {}
    wide: set[str] = set()  # symbols of dimensions
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
    """The lower bound of a symbol, from the range of the size that contains it: for the symbol itself PyTorch says 2 where it may be 1."""
    said: Any = exported.range_constraints.get(expr)
    slope = expr.coeff(symbol)
    rest = sympy.expand(expr - slope * symbol)
    if said is None or not (
        slope.is_Integer and rest.is_Integer and slope > 0 and said.lower.is_Integer
    ):
        return UNBOUNDED
    return max(0, math.ceil((int(said.lower) - int(rest)) / int(slope)))


def _conditions(exported: ExportedProgram, names: Collection[str]) -> tuple[str, ...]:
    """The graph's assertions on these symbols, and the model's guards; without assertions that a size is not 1 made for an operator."""
    values = [_assertion(node) for node in exported.graph.nodes]
    own = [x.node.expr for x in values if isinstance(x, torch.SymBool)]
    own = [x for x in own if not (isinstance(x, sympy.Ne) and 1 in x.args)]
    every = [x for x in (*own, *guards_of(exported)) if x.free_symbols]
    known = [x for x in every if all(str(s) in names for s in x.free_symbols)]
    return tuple(dict.fromkeys(map(text_of, known)))


def _assertion(node: torch.fx.Node) -> Any:
    if node.op != "call_function" or node.target is not torch.ops.aten._assert_scalar.default:
        return None
    value = node.args[0]
    return value.meta.get("val") if isinstance(value, torch.fx.Node) else value


UNBOUNDED = 1 << 31  # larger upper bounds count as unbounded


def _ends(known: ValueRanges[Any] | None, what: str) -> tuple[int, int]:
    if known is None or not known.upper.is_Integer or int(known.upper) >= UNBOUNDED:
        raise CaptureError(
            f"{what} has no upper bound: name one, such as torch.export.Dim(\"length\", max=512), because memory is laid out for"
            " the largest size"
        )  # fmt: skip
    return max(int(known.lower), 0), int(known.upper)


MAX_CLASSES = 6  # of sizes
TILE = 64  # a larger bound is a multiple, so that no tile of rows is nearly empty
COARSE = (4, 256)  # classes of sizes, and what the first covers, where compilations weigh more
SHORT = 32  # one class covers all sizes up to this, if halving the upper bound does not reach it


def size_classes(
    ranges: Ranges, most: int = MAX_CLASSES, short: int = SHORT
) -> list[dict[str, int]]:
    """The upper bounds of the symbols in each size class, ascending; the last class has all sizes. most: the number of classes. short: as SHORT.

    A kernel that is cut for many rows takes longer for few: its tiles are large, and its stages have fewer tasks than there are workers.
    """
    each = max(1, int(most ** (1 / max(1, len(ranges.of)))))
    ways = [_steps(low, high, each, short) for _, low, high in ranges.of]
    names = [n for n, _, _ in ranges.of]
    return [dict(zip(names, x, strict=True)) for x in itertools.product(*ways)]


def classes_of(
    ranges: Ranges, several: bool, paths: int = 1, *, coarse: bool = False
) -> Sequence[Mapping[str, int]]:
    """The size classes of a model, if several are wanted. paths: the number of its exports; a specialisation for a size of 1 replaces one class.
    coarse: few and wide ones, of what is not run often enough to be worth more compilations."""
    if not several:
        return [{}]
    return (
        size_classes(ranges, *COARSE) if coarse else size_classes(ranges, MAX_CLASSES - (paths > 1))
    )


def _steps(low: int, high: int, count: int, short: int) -> list[int]:
    """Up to `count` numbers from `low` to `high`, in about constant ratio: a half if that needs few numbers. Those below `high` are multiples of
    TILE if they are greater."""
    least = max(low, min(high >> (count - 1), short), 1)
    ratio = max(2.0, (high / least) ** (1 / max(count - 1, 1)))
    found = (high / ratio**k for k in range(1, count))
    whole = (round(n / TILE) * TILE if n > TILE else round(n) for n in found)
    return sorted({high, *(max(low, n) for n in whole if n < high)})
