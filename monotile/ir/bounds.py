"""Finds Loads that are certainly out of bounds: candidates by intervals, each proven by a witness."""

from collections.abc import Iterator, Sequence

import numpy as np

from monotile.errors import VerificationError
from monotile.ir.body import Body
from monotile.ir.expr import Axis, Binary, Expr, Load, Select, Unary, axes_of, children, loads
from monotile.ir.intervals import Ranges

SAMPLES = 4096  # points of the axes to try

Guard = tuple[Expr, bool]


def find_violation(e: Expr, axes: Sequence[Axis]) -> str | None:
    """A message that names an out-of-range index of a Load in `e` and the values of `axes` for which it is.

    Every message is correct. Indices that depend on data, or are used under data-dependent conditions, are not checked.
    """
    if any(a.extent == 0 for a in axes):
        return None
    for load, guards in suspects(e, Ranges()):
        found = _witness(load, guards, axes)
        if found is not None:
            return found
    return None


def evaluated(
    e: Expr, ranges: Ranges, guards: tuple[Guard, ...] = ()
) -> Iterator[tuple[Load, Ranges, tuple[Guard, ...]]]:
    """The Loads in `e`, each with the ranges and the conditions under which it is evaluated; without those that never are."""
    match e:
        case Select(cond, then, otherwise):
            yield from evaluated(cond, ranges, guards)
            known = ranges.truth(cond)
            for side, value in ((then, True), (otherwise, False)):
                if known in (None, value):
                    yield from evaluated(side, ranges.under(cond, value), (*guards, (cond, value)))
        case Binary("and" | "or" as op, a, b):
            yield from evaluated(a, ranges, guards)
            value = op == "and"
            yield from evaluated(b, ranges.under(a, value), (*guards, (a, value)))
        case _:
            for child in children(e):
                yield from evaluated(child, ranges, guards)
            if isinstance(e, Load):
                yield e, ranges, guards


def suspects(
    e: Expr, ranges: Ranges, guards: tuple[Guard, ...] = ()
) -> Iterator[tuple[Load, tuple[Guard, ...]]]:
    """The Loads in `e` whose indices are not proven to be in bounds, with the conditions under which they are evaluated."""
    for load, inside, when in evaluated(e, ranges, guards):
        if not in_bounds(load, inside):
            yield load, when


def in_bounds(e: Load, ranges: Ranges) -> bool:
    """Whether every index of `e` is proven to be in bounds."""
    return all(
        (found := ranges.of(i)) is not None and found.inside(0, n - 1)
        for i, n in zip(e.index, e.tensor.shape, strict=True)
    )


def _witness(e: Load, guards: Sequence[Guard], axes: Sequence[Axis]) -> str | None:
    decided = [i for i in e.index if not loads(i)]
    if len(decided) != len(e.index) or any(loads(g) for g, _ in guards):
        return None
    wanted = axes_of(e).union(*(axes_of(g) for g, _ in guards))
    own = [a for a in axes if a in wanted]
    points = _sample(own)
    condition: Expr | None = None
    for guard, value in guards:
        term = guard if value else Unary("not", guard)
        condition = term if condition is None else Binary("and", condition, term)
    body = Body({}, dict(zip([a.name for a in own], points, strict=True)), "")
    mask = None if condition is None else np.asarray(body.value(condition, None))
    for k, (i, n) in enumerate(zip(e.index, e.tensor.shape, strict=True)):
        try:
            body.index(i, n, mask, e.tensor.name)
        except VerificationError as problem:
            return f"dimension {k}: {problem}"
    return None


def _sample(axes: Sequence[Axis]) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """Values of the axes, one array each: all points if they are few, else the corners and a fixed sample."""
    total = 1
    for a in axes:
        total *= a.extent
    if total <= SAMPLES:
        grids = np.meshgrid(*(np.arange(a.extent, dtype=np.int64) for a in axes), indexing="ij")
        return [g.reshape(-1) for g in grids]
    rng = np.random.default_rng(0)
    out: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = []
    corners = min(len(axes), 10)
    for k, a in enumerate(axes):
        bits = (
            (np.arange(1 << corners) >> k) & 1 if k < corners else rng.integers(0, 2, 1 << corners)
        )
        some = rng.integers(0, a.extent, SAMPLES)
        out.append(np.concatenate([bits * (a.extent - 1), some]).astype(np.int64))
    return out
