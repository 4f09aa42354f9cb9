"""Streamed weights: those that a launch reads from memory again each time that they are used. Together they exceed the last-level cache,
most of them are multiplied with a few vectors only, and no loop reads the same of them often enough to keep it on chip. They are read
in whole rows, along which is summed, or in parts of rows, across which is summed."""

from collections.abc import Iterator, Sequence

from monotile.analysis.affine import affine, contiguous_run, offset
from monotile.analysis.contraction import factors, grain
from monotile.analysis.dependence import loads_of
from monotile.analysis.encoding import coded_sides, quotient
from monotile.analysis.reuse import reuses
from monotile.analysis.states import steady_weights
from monotile.ir.expr import Axis, Load, axes_of, loads
from monotile.ir.program import Compute, Loop, Program, Scatter, statements

# Uses of an element, vectors that a matrix is multiplied with: as threads multiply it, and as tensor cores do once codes are decoded.
FEW, MANY = 8, 16
VECTOR = 16  # bytes of one access


def streamed_weights(program: Program, cached: float, on_chip: int) -> frozenset[str]:
    """Their names. cached: bytes that stay in the last-level cache from call to call. on_chip: bytes that all workers can keep."""
    sizes = {w.tensor.name: w.tensor.nbytes for w in program.weights}
    total = sum(sizes.values())
    if total <= cached:
        return frozenset()
    most = _most_times(program)
    times = {r.tensor: r.times for r in reuses(program)}
    seldom = {n for n, often in times.items() if often <= max(FEW, most.get(n, 0))}
    if 2 * sum(sizes[n] for n in seldom & sizes.keys()) < total:
        return frozenset()
    few = {n for n in seldom if times[n] <= most.get(n, 0)}
    kept = {
        x.tensor.name
        for loop in statements(program.body)
        if isinstance(loop, Loop)
        for x in _same_each_time(loop)
        if x.tensor.nbytes <= on_chip
    }
    return steady_weights(program) & few - kept


def _most_times(program: Program) -> dict[str, int]:
    """How often an element that is summed along its last dimension may be used. One may count as several: codes in words."""
    found: dict[str, int] = {}
    for s in statements(program.body):
        if isinstance(s, Compute):
            coded = {x for k in coded_sides(s) for x in loads(factors(s)[k])}
            for x in loads_of(s):
                for along in s.reduce:
                    if x.index and quotient(x.index[-1], along):
                        many = MANY if x in coded else FEW
                        found[x.tensor.name] = many * grain(x.index[-1], along)
                    elif across(x, along, s.axes):
                        found[x.tensor.name] = FEW
    return found


def across(x: Load, along: Axis, axes: Sequence[Axis]) -> bool:
    """Whether neighbours among the results, whose axes are `axes`, read whole vectors of `x` at each position of `along`, which walks one
    of its dimensions step by step."""
    used = frozenset[Axis]().union(*map(axes_of, x.index))
    wide = [a for a in axes if a.extent > 1 and a in used]
    walked = [t for i in x.index for t in affine(i).terms if along in axes_of(t[0])]
    if walked != [(along, 1)]:
        return False
    count = VECTOR // x.dtype.itemsize
    return bool(wide) and contiguous_run(offset(x), wide[-1], count) == count


def _same_each_time(loop: Loop) -> Iterator[Load]:
    """Whether the loop's body reads the same of it in every iteration."""
    axes = {loop.axis, *(s.axis for s in statements(loop.body) if isinstance(s, Loop))}
    for s in statements(loop.body):
        if isinstance(s, (Compute, Scatter)):
            yield from (x for x in loads_of(s) if not any(axes & axes_of(i) for i in x.index))
