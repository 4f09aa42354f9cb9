"""The uses of each tensor of a Program: readers, kinds, numbers."""

import functools
from collections import Counter
from math import prod

from monotile.ir.expr import Axis, Binary, Const, Expr, Load, Select, Tensor, children, loads, walk
from monotile.ir.program import (
    Branch,
    Compute,
    Loop,
    Program,
    Scatter,
    Statement,
    defined,
    statements,
    used,
    wholes,
)


class Uses:
    """Facts about the uses of a Program's tensors, by name.

    whole:       tensors used other than by a Load: outputs, carried values, a Scatter's base, ...
    evaluations: how often a Load of the tensor is evaluated for each time that the tensor is computed;
                 two Loads of one element in one expression count once.
    readers:     statements with a Load of the tensor.
    reductions:  tensors that a Compute with a combiner defines.
    depth:       loops around a tensor's definition.
    """

    def __init__(self, program: Program) -> None:
        self.whole: set[str] = {t.name for t in program.outputs}
        self.evaluations: Counter[str] = Counter()
        self.readers: Counter[str] = Counter()
        self.reductions: set[str] = set()
        self.depth: dict[str, int] = {}
        self._body(program.body, ())

    def _body(self, body: tuple[Statement, ...], loops: tuple[int, ...]) -> None:
        for s in body:
            match s:
                case Compute():
                    self._loads((s.body,), (*s.axes, *s.reduce), loops)
                    if s.combiner is not None:
                        self.reductions.add(s.out.name)
                case Scatter():
                    self._mark(s.base)
                    self._loads((*s.index, s.value), s.axes, loops)
                case Loop():
                    self._loop(s, loops)
                case Branch():
                    self._mark(s.predicate, *(t for o in s.outs for t in (o.then, o.otherwise)))
                    self._body(s.then, loops)
                    self._body(s.otherwise, loops)
            self.depth |= {t.name: len(loops) for t in defined(s)}

    def _loop(self, s: Loop, loops: tuple[int, ...]) -> None:
        self._mark(*(t for c in s.carried for t in (c.init, c.result)))
        self._mark(*(k.value for k in s.stacked))
        self._mark(*(t for t in (s.count, s.predicate) if t is not None))
        inner = (*loops, s.axis.extent)
        self.depth |= {c.param.name: len(inner) for c in s.carried}
        self._body(s.body, inner)

    def _mark(self, *tensors: Tensor) -> None:
        self.whole.update(t.name for t in tensors)

    def _loads(
        self, expressions: tuple[Expr, ...], axes: tuple[Axis, ...], loops: tuple[int, ...]
    ) -> None:
        found: dict[Load, float] = {}
        for e in expressions:
            for load, share in (_shares(e) if _parted(e) else dict.fromkeys(loads(e), 1.0)).items():
                found[load] = max(found.get(load, 0.0), share)
        points = prod(a.extent for a in axes)
        for load, share in found.items():
            name = load.tensor.name
            self.evaluations[name] += round(points * share) * prod(loops[self.depth.get(name, 0) :])
        for name in {load.tensor.name for load in found}:
            self.readers[name] += 1


def _share(cond: Expr) -> float | None:
    """The fraction of neighbours along an axis for which a condition on the remainder of their number holds; None for any other
    condition."""
    match cond:
        case Binary("eq", Binary("mod", Axis(), Const(k)), Const(c)) if 0 <= int(c) < int(k):
            return 1 / int(k)
        case Binary("lt", Binary("mod", Axis(), Const(k)), Const(c)) if 0 < int(c) < int(k):
            return int(c) / int(k)
        case _:
            return None


@functools.lru_cache(maxsize=1 << 15)
def _parted(e: Expr) -> bool:
    """Whether a condition on a remainder decides at which points something in `e` counts."""
    return any(isinstance(x, Select) and _share(x.cond) for x in walk(e))


def _shares(e: Expr) -> dict[Load, float]:
    """For each Load in `e`, the fraction of all points at which it counts, as far as conditions on remainders decide."""
    found: dict[Load, float] = {}
    if isinstance(e, Load):
        found[e] = 1.0
    share = _share(e.cond) if isinstance(e, Select) else None
    if isinstance(e, Select) and share is not None:
        for side, part in ((e.then, share), (e.otherwise, 1 - share)):
            for load, own in _shares(side).items():
                found[load] = found.get(load, 0.0) + part * own
        return found
    for x in children(e):
        for load, own in _shares(x).items():
            found[load] = max(found.get(load, 0.0), own)
    return found


def references(body: tuple[Statement, ...]) -> tuple[Counter[str], Counter[str]]:
    """How often the statements of `body`, and those inside, use each tensor as a whole: in updates, carries, stacks, as conditions; and
    how often they load from it."""
    whole, loaded = Counter[str](), Counter[str]()
    for s in statements(body):
        own = wholes(s)
        whole.update(t.name for t in own)
        if isinstance(s, (Compute, Scatter)):
            loaded.update(t.name for t in used(s)[len(own) :])
    return whole, loaded


def mentioned(body: tuple[Statement, ...]) -> Counter[str]:
    """Number of references to each tensor by the statements of `body`, and those inside: loads, updates, carries, stacks."""
    whole, loaded = references(body)
    return whole + loaded


def mentions(program: Program) -> Counter[str]:
    """Number of references to each tensor, outputs included."""
    return Counter(t.name for t in program.outputs) + mentioned(program.body)
