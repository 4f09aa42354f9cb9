"""Reuse of tensors in space (several readers) and in time (one reader, the same element again), and the
arithmetic intensity of their readers (Souffle, ASPLOS'24)."""

import functools
from collections.abc import Iterator, Mapping
from math import prod

import msgspec

from monotile.analysis.affine import affine
from monotile.analysis.cost import cost
from monotile.analysis.dependence import loads_of
from monotile.ir.expr import Axis, Binary, Const, Expr, Load, axes_of
from monotile.ir.program import Compute, Program, Scatter, expressions, statements

# Bytes of a tensor from which on a first-level cache does not keep it between readings.
LARGE = 1 << 15
Extents = Mapping[str, int]  # of axes, by name, within the region looked at


class Reuse(msgspec.Struct, frozen=True):
    """One tensor of a Program.

    readers: Computes and Scatters that load it: its reuse in space.
    times:   loads per element, on average, of the reader with most: its reuse in time.
    """

    tensor: str
    readers: int
    times: float


def reuses(program: Program) -> Iterator[Reuse]:
    """One Reuse for every tensor that is loaded, in the order of first readers."""
    found: dict[str, list[float]] = {}
    for s in statements(program.body):
        if isinstance(s, (Compute, Scatter)):
            for name, often in _times(s).items():
                found.setdefault(name, []).append(often)
    for name, often in found.items():
        yield Reuse(name, len(often), max(often))


def intensity(s: Compute | Scatter) -> float:
    """Arithmetic intensity of `s`: operations per byte that it has to read or write once."""
    extents = extents_of(s)
    work = prod(extents.values()) * sum(cost(e) for e in expressions(s))
    written = (
        s.out.nbytes if isinstance(s, Compute) else prod(extents.values()) * s.out.dtype.itemsize
    )
    parts: dict[str, int] = {}
    for x in set(loads_of(s)):
        parts[x.tensor.name] = min(
            x.tensor.nbytes, parts.get(x.tensor.name, 0) + footprint(x, extents)
        )
    return work / max(1, written + sum(parts.values()))


def footprint(x: Load, extents: Extents) -> int:
    """Upper bound of the bytes of `x.tensor` that a region with these extents touches (distinct index tuples)."""
    points, places = 1, 1
    for axis in _index_axes(x):
        points *= extents.get(axis.name, 1)
    for reach in _reaches(x):
        places *= reach.within(extents)
    return min(points, places, x.tensor.size) * x.tensor.dtype.itemsize


def run_bytes(x: Load, extents: Extents) -> int:
    """Lower bound of the contiguous bytes among these."""
    count = 1
    for extent, reach in zip(reversed(x.tensor.shape), reversed(_reaches(x)), strict=True):
        here = reach.within(extents)
        count *= max(1, here)  # an empty tensor counts as one element
        if here < extent:
            break
    return count * x.tensor.dtype.itemsize


class _Atom(msgspec.Struct, frozen=True):
    """An axis by its name, its quotient by `by`, or its remainder. step: the index's stride from one value to the next."""

    axis: str
    step: int
    op: str = ""
    by: int = 1

    def within(self, extents: Extents) -> int:
        """Upper bound of the number of values, which are contiguous. A region begins at a multiple of its extent."""
        n = extents.get(self.axis, 1)
        if not self.op:
            return n
        aligned = n % self.by == 0 or self.by % n == 0
        match self.op:
            case "floordiv":
                return -(-n // self.by) if aligned else (n + self.by - 2) // self.by + 1
            case _:
                return min(n, self.by) if aligned else self.by


class _Reach(msgspec.Struct, frozen=True):
    """The atoms of a dimension's index, if it is a sum of such; otherwise only its axes."""

    extent: int
    axes: tuple[str, ...]
    atoms: tuple[_Atom, ...] | None

    def within(self, extents: Extents) -> int:
        """Upper bound of the number of distinct values."""
        if self.atoms is None:
            return min(prod(extents.get(name, 1) for name in self.axes), self.extent)
        if len(self.atoms) == 1:  # atoms have steps of 1 at least
            return min(self.atoms[0].within(extents), self.extent)
        counts = [a.within(extents) for a in self.atoms]
        span = 1 + sum(a.step * (n - 1) for a, n in zip(self.atoms, counts, strict=True))
        return min(prod(counts), self.extent, span)


@functools.lru_cache(maxsize=4096)
def _reaches(x: Load) -> tuple[_Reach, ...]:
    """The _Reach of every dimension."""
    out: list[_Reach] = []
    for i, extent in zip(x.index, x.tensor.shape, strict=True):
        atoms = [_atom(a, abs(k)) for a, k in affine(i).terms]
        known = tuple(a for a in atoms if a is not None)
        names = tuple(a.name for a in axes_of(i))
        out.append(_Reach(extent, names, known if len(known) == len(atoms) else None))
    return tuple(out)


def _atom(e: Expr, step: int) -> _Atom | None:
    match e:
        case Axis():
            return _Atom(e.name, step)
        case Binary("floordiv" | "mod" as op, Axis(name), Const(int(by))) if by > 0:
            return _Atom(name, step, op, by)
        case _:
            return None


def _times(s: Compute | Scatter) -> dict[str, float]:
    """Loads per loaded element of `s`, for each tensor."""
    extents = extents_of(s)
    points = prod(extents.values())
    loaded: dict[str, int] = {}
    touched: dict[str, int] = {}
    for x in dict.fromkeys(loads_of(s)):
        name, size = x.tensor.name, x.tensor.dtype.itemsize
        loaded[name] = loaded.get(name, 0) + points
        reached = touched.get(name, 0) + footprint(x, extents) // size
        touched[name] = min(x.tensor.size, reached)
    return {name: n / max(1, touched[name]) for name, n in loaded.items()}


def extents_of(s: Compute | Scatter) -> dict[str, int]:
    """The extents of the axes of `s` itself."""
    reduce = s.reduce if isinstance(s, Compute) else ()
    return {a.name: a.extent for a in (*s.axes, *reduce)}


@functools.lru_cache(maxsize=4096)
def _index_axes(x: Load) -> frozenset[Axis]:
    return frozenset(a for i in x.index for a in axes_of(i))
