"""Constant folding: statements that depend only on constants are evaluated at compile time."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from monotile.analysis.cost import index_only, size
from monotile.errors import IndexOutOfRangeError
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Const, Expr, Load, Tensor, axes_of, const, loads, map_loads
from monotile.ir.program import (
    Compute,
    Loop,
    Program,
    Scatter,
    Statement,
    Weight,
    compute,
    expressions,
)
from monotile.transform.fusion.inline import element_of
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, same
from monotile.transform.simplify.simplify import simplify_compute

Constants = Mapping[str, np.ndarray[Any, Any]]

LARGEST = 64 << 20  # limit of the bytes of one folded tensor
GROWTH = 4  # limit of its bytes relative to those of its operands
FREE = 1 << 20  # bytes that a folded tensor may always have
WORK = 1 << 27  # limit of scalar operations at compile time per tensor
SMALL_NODES = 24  # expressions of axes alone up to this size are recomputed at each use


def fold(program: Program, constants: Constants) -> tuple[Program, Constants]:
    """`program` with Computes and Scatters of constants replaced by weights, and the extended constants.

    constants: values by part name; weights of other parts are parameters, whose values may change.
    Inside a Loop only loop invariants are folded. Expressions that are cheaper to recompute than to read are not
    folded.
    """
    folder = _Folder(program, constants)
    body = folder.body(program.body, ())
    if same(body, program.body):
        return program, constants
    new = msgspec.structs.replace(program, body=body, weights=(*program.weights, *folder.weights))
    stored = {p: folder.made[p] for w in folder.weights for p in w.parts}
    return new, {**constants, **stored}


class _Folder:
    def __init__(self, program: Program, constants: Constants) -> None:
        self.constants = constants
        self.names = Names(program)
        self.parts = {p for w in program.weights for p in w.parts} | set(constants)
        self.known: dict[str, Weight] = {
            w.tensor.name: w for w in program.weights if all(p in constants for p in w.parts)
        }
        self.weights: list[Weight] = []
        self.cheap: dict[str, Compute] = {}  # evaluated, but kept in the Program
        self.made: dict[str, np.ndarray[Any, Any]] = {}

    def body(self, body: Body, loops: tuple[str, ...]) -> Body:
        out: list[Statement] = []
        for s in body:
            match s:
                case Compute() | Scatter():
                    out += self._statement(s, loops)
                case Loop():
                    inner = (*loops, s.axis.name)
                    out.append(map_bodies(s, lambda b, inner=inner: self.body(b, inner)))
                case _:
                    out.append(map_bodies(s, lambda b: self.body(b, loops)))
        return tuple(out)

    def _statement(self, s: Compute | Scatter, loops: tuple[str, ...]) -> list[Statement]:
        """`s`, or nothing if a Weight replaces it, or a fill if all elements are equal."""
        s = self._settled(s)
        sources = {t.name for t in _sources(s)}
        own = expressions(s)
        if not sources <= self.known.keys() or not _worth_folding(s, [*map(self._tensor, sources)]):
            return [s]
        if any(a.name in loops for e in own for a in axes_of(e)):
            return [s]
        weights = tuple(self.known[name] for name in sorted(sources))
        values = {p: self._value(p) for w in weights for p in w.parts}
        try:
            (found,) = evaluate(Program((), weights, (s,), (s.out,)), values)
        except IndexOutOfRangeError:  # an error at run time, if it runs at all
            return [s]
        part = _fresh(f"const.{s.out.name}", self.parts)
        self.made[part] = found
        weight = self.known[s.out.name] = Weight(s.out, (part,))
        element = _uniform(found, s.out.dtype)
        if element is not None:
            fill = compute(s.out, lambda *_: element, origin=s.origin)
            s = s if fill == s else fill
        if isinstance(s, Compute) and (_is_short(s) or _is_view(s)):
            self.cheap[s.out.name] = s
            return [s]
        self.weights.append(weight)
        return []

    def _settled(self, s: Compute | Scatter) -> Compute | Scatter:
        """`s` with its sources inlined, if these are cheap and the result depends on its axes alone; else with those whose elements are
        all equal."""
        if isinstance(s, Scatter) or not any(t.name in self.cheap for t in _sources(s)):
            return s
        new = _inlined(s, self.cheap)
        if _is_short(new):
            return new
        return _inlined(s, {n: c for n, c in self.cheap.items() if isinstance(c.body, Const)})

    def _tensor(self, name: str) -> Tensor:
        return self.known[name].tensor

    def _value(self, part: str) -> np.ndarray[Any, Any]:
        return self.made[part] if part in self.made else self.constants[part]


def _inlined(s: Compute, cheap: Mapping[str, Compute]) -> Compute:
    def replace(load: Load) -> Expr:
        source = cheap.get(load.tensor.name)
        return load if source is None else element_of(source, load.index)

    body = map_loads(s.body, replace)
    return s if body == s.body else simplify_compute(msgspec.structs.replace(s, body=body))


def _sources(s: Compute | Scatter) -> list[Tensor]:
    found = [x.tensor for e in expressions(s) for x in loads(e)]
    return [*found, s.base] if isinstance(s, Scatter) else found


def _uniform(x: np.ndarray[Any, Any], dtype: DType) -> Const | None:
    """The value of all elements of `x`, if they are equal bit for bit."""
    bits = np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(-1, x.dtype.itemsize)
    if x.size == 0 or not (bits == bits[0]).all():
        return None
    first = x.reshape(-1)[0]
    return const(float(first) if dtype.is_float else first.item(), dtype)


def _is_short(s: Compute) -> bool:
    """Whether `s` depends on its axes alone and is better recomputed at each use."""
    plain = s.combiner is None and index_only(s.body)
    return plain and size(s.body, SMALL_NODES) <= SMALL_NODES


def _is_view(s: Compute) -> bool:
    """Whether `s` is a view of a stored tensor."""
    return s.combiner is None and isinstance(s.body, Load)


def _worth_folding(s: Compute | Scatter, sources: list[Tensor]) -> bool:
    """Whether storing the value pays."""
    points, nodes = 1, sum(size(e, 1000) for e in expressions(s))
    for a in (*s.axes, *(s.reduce if isinstance(s, Compute) else ())):
        points *= a.extent
    if s.out.nbytes > LARGEST or points * nodes > WORK:
        return False
    return s.out.nbytes <= max(FREE, GROWTH * sum(t.nbytes for t in sources))


def _fresh(name: str, taken: set[str]) -> str:
    new, k = name, 0
    while new in taken:
        k += 1
        new = f"{name}.{k}"
    taken.add(new)
    return new
