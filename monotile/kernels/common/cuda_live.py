"""Loops that skip dead elements, and conditions on live ones."""

import math
from collections.abc import Mapping, Sequence

from monotile.codegen.site import Range, Site
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.ir.expr import Axis, Expr


def live_turns(
    e: VectorEmitter, site: Site, axes: Sequence[Axis], count: int, step: int
) -> tuple[str, str]:
    """Texts of the first of `count` iterations over `axes`, flattened, with a live point, and of the one after the last. step: points of an
    iteration."""
    span = site.spans.get(axes[0].name) if axes else None
    if span is None:
        return "0", str(count)
    inner = math.prod(a.extent for a in axes[1:])
    first, end = bare(e.index(span.first)), bare(e.index(span.end))
    low = f"{first} * {inner} / {step}" if span.begins else "0"
    if step == inner == 1:
        return first, end
    return low, f"({end} * {inner} + {step - 1}) / {step}"


def live_rounds(ranges: Sequence[Range], count: int, step: int) -> tuple[str, str]:
    """The same for rounds over the outputs of a tile, with `step` outputs each."""
    own = [r for r in ranges if r.variable.extent > 1]
    if len(own) != 1 or own[0].count.isdigit():
        return "0", str(count)
    (r,) = own
    return f"{r.low} / {step}" if r.low else "0", f"({r.count} + {step - 1}) / {step}"


def dead_round(ranges: Sequence[Range], step: int) -> str:
    """Text of whether no output of a round is live, where rounds run over several ranges, the last of which is bounded; "" for never."""
    own = [r for r in ranges if r.variable.extent > 1]
    if len(own) < 2 or own[-1].count.isdigit() or own[-1].variable.extent % step:
        return ""
    r = own[-1]
    at = f"round % {r.variable.extent // step} * {step}"
    return f"{at} >= {r.count}" + (f" || {at} + {step} <= {r.low}" if r.low else "")


def is_live(e: VectorEmitter, site: Site, axes: Sequence[Axis], point: Mapping[str, Expr]) -> str:
    """Text of whether the term at `point` counts; "" if all terms do."""
    tests: list[str] = []
    for a in axes:
        span = site.spans.get(a.name)
        if span is not None:
            at = bare(e.index(point[a.name]))
            if span.begins:
                tests.append(f"{at} >= {bare(e.index(span.first))}")
            if span.ends:
                tests.append(f"{at} < {bare(e.index(span.end))}")
    return " && ".join(tests)
