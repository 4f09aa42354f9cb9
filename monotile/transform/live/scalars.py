"""Scalars and tensors of bounds: the smallest or largest of ends that depend on some rows."""

from collections.abc import Iterable, Sequence
from math import gcd

from monotile.analysis.contraction import grain
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, Tensor, add, binary, idx, loads, mul, substitute
from monotile.ir.program import At, Compute, Ends, Program
from monotile.transform.live.places import Place, Places, inserted
from monotile.transform.names import Names
from monotile.transform.simplify.simplify import simplify_expr

Rows = tuple[At, ...]


class Scalars:
    """Statements that compute bounds in a Program. made: with their places; equal statements are merged."""

    def __init__(self, program: Program) -> None:
        self.places, self._names = Places(program), Names(program)
        self.made: dict[Compute, Place] = {}
        self._known: dict[tuple[object, ...], Tensor] = {}

    def ends(
        self,
        first: Expr | None,
        last: Expr | None,
        rows: Rows,
        at: Rows,
        *,
        ordered: bool = False,
    ) -> Ends:
        """The earliest `first` and the latest `last` for each point of `at`: of all points of `rows` that are in its run; of an axis
        that is not in `at`, of all. ordered: `first` is clamped so that it is not after `last`."""
        stem = "run" if at else "live"
        end = None if last is None else self.end(f"{stem}_end", last, rows, at, "max")
        if first is None:
            return None, end
        before = end if ordered else None
        return self.end(f"{stem}_first", first, rows, at, "min", before), end

    def own(self, first: Expr | None, last: Expr | None, at: Rows) -> Ends:
        """Both for each point of `at`, in whose runs they are the same."""
        return (
            None if first is None else self.end("row_first", first, at, at),
            None if last is None else self.end("row_end", last, at, at),
        )

    def end(
        self,
        name: str,
        e: Expr,
        rows: Rows,
        at: Rows = (),
        combiner: str = "",
        before: Tensor | None = None,
    ) -> Tensor:
        """`e`, which depends on `rows`, for each point of `at`: combined over all others, "" where these are equal. before: its upper
        limit."""
        axes, reduce, point = _grid(rows, at, one=not combiner)
        body = substitute(e, point)
        body = body if combiner else simplify_expr(body)
        place, combined = self.places.earliest((body,)), combiner if reduce else None
        if before is not None:
            body = binary("min", body, add(Load(before, axes), idx(-1)))
        key = place, axes, reduce, combined, body
        if key not in self._known:
            fresh = self._names.fresh(name)
            out = Tensor(fresh, tuple(a.extent for a in axes), DType.I64)
            self._known[key] = out
            self.made[Compute(out, axes, reduce, combined, body)] = place
            self.places.since[out.name] = place
        return self._known[key]

    def insert(self, program: Program, taken: Iterable[Tensor]) -> Program:
        """`program` with the used ones of them, and their operands."""
        wanted, new = set(taken), dict[Place, list[Compute]]()
        for made in reversed(self.made):
            if made.out in wanted:
                wanted |= {x.tensor for x in loads(made.body)}
        for made, place in self.made.items():
            if made.out in wanted:
                new.setdefault(place, []).append(made)
        return inserted(program, new)


def _grid(
    rows: Rows, at: Rows, *, one: bool
) -> tuple[tuple[Axis, ...], tuple[Axis, ...], dict[str, Expr]]:
    """Axes for the points of `at`, axes that are combined, and the expressions that replace the axes of `rows`. one: the first point of
    a run stands for it."""
    axes, reduce = list[Axis](), list[Axis]()
    point: dict[str, Expr] = {}
    for x in rows:
        run = next((y.run for y in at if y.axis == x.axis), None)
        if run is None:
            reduce.append(Axis(f"r{len(reduce)}", x.axis.extent))
            point[x.axis.name] = reduce[-1]
            continue
        own = Axis(f"i{len(axes)}", At(x.axis, run).extent)
        axes.append(own)
        place: Expr = mul(own, idx(run))
        if run > 1 and not one:
            reduce.append(Axis(f"r{len(reduce)}", run))
            place = add(place, reduce[-1])
            if x.axis.extent % run:
                place = binary("min", place, idx(x.axis.extent - 1))
        point[x.axis.name] = place
    return tuple(axes), tuple(reduce), point


def own_runs(rows: Rows, ends: Sequence[Expr | None]) -> Rows:
    """The longest runs of each axis within which the ends are the same."""

    def run(axis: Axis) -> int:
        found = gcd(*(grain(e, axis) for e in ends if e is not None))
        return found if found and axis.extent % found == 0 else 1

    return tuple(At(x.axis, run(x.axis)) for x in rows)


def cuts(rows: Rows, run: int) -> Iterable[Rows]:
    """The ways to have ends for parts of `rows`: runs of one axis, points of the others; an axis no longer than a run is taken as a
    whole."""
    several = tuple(x for x in rows if x.axis.extent > 1)
    for x in several:
        at = tuple(
            At(y.axis, run if y is x else 1) for y in several if y is not x or y.axis.extent > run
        )
        if at:
            yield at
    if several:
        yield several
