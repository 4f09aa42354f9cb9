"""Checks that a step of attention is valid."""

import math

from monotile.ir.program import Compute
from monotile.kernels.attention.match import Attention, attention
from monotile.kernels.attention.method import DIRECT_DEPTHS, DIRECT_RUN, Attend
from monotile.kernels.attention.runs import alike
from monotile.kernels.attention.sides import exact_sides
from monotile.kernels.common.epilogue import WIDEST
from monotile.kernels.common.late import looks_up, several_blocks
from monotile.kernels.common.vectors import exact_width
from monotile.kernels.family import Checked, Statements
from monotile.plan.invalid import fail
from monotile.plan.nodes import Stage

PANEL_ALIGN = 1024  # bytes: eight lines, among which wgmma permutes cells


def check(c: Checked) -> None:
    """Checks that the computes before the anchor are those of the softmax that the method describes, and that its warps add up."""
    stage, step, a, target = c.stage, c.step, c.step.method, c.target
    assert isinstance(a, Attend)
    made = {n: s for n in step.computes if isinstance(s := c.statements[n], Compute)}
    anchor = made.get(step.computes[step.anchor])
    found = attention(anchor, made) if anchor is not None else None
    if found is None or tuple(s.out.name for s in found.inner) != step.computes[: step.anchor]:
        fail(f"{stage.name}: {step.computes[step.anchor]} is no softmax-weighted sum of the step")
        return
    said = (a.along, (a.queries_second, a.weights_second), a.least, a.scale, a.part)
    if said != (found.along, found.swapped, found.least, found.scale, found.shares is None):
        fail(
            f"{stage.name}: {step.computes[step.anchor]} is another softmax-weighted sum than its method says"
        )
    if exact_sides(step, c.view) != (a.query, a.key, a.value):
        fail(f"{stage.name}: queries, keys or values cannot be read so")
    if a.passes != found.passes or (found.size != 2 and (a.instruction == "wgmma" or a.direct)):
        fail(f"{stage.name}: attention cannot multiply its operands so")
    _check_rows(c, a, found)
    if not alike(found):
        fail(f"{stage.name}: {step.computes[step.anchor]} has other keys than its softmax")
    columns, given = step.dims[a.n], a.epilogue
    if given.by_rows or given.steady or columns.tile % given.width:
        fail(f"{stage.name}: attention cannot take its sums by {given.describe()}")
    if exact_width(given.width, c.anchor, (columns,)) != given.width or given.width > WIDEST:
        fail(f"{stage.name}: {given.width} sums at once do not divide its columns")
    _check_direct(c, a, found)
    warps = target.threads // target.warp
    if a.instruction == "wgmma" and (a.block_m % 64 or warps % (a.block_m // 16)):
        fail(f"{stage.name}: no whole warpgroups for {a.block_m} rows")
    if a.instruction == "wgmma" and a.slices(warps) == 1 and a.depth < 3:
        fail(f"{stage.name}: a ring that warpgroups share has three stages at least")
    if a.instruction == "wgmma" and step.scratch % PANEL_ALIGN:
        fail(f"{stage.name}: panels of warpgroups begin at multiples of {PANEL_ALIGN} bytes")


def _check_direct(c: Checked, a: Attend, found: Attention) -> None:
    """Checks that warps read all operands directly or none, in runs that lanes divide."""
    sides = (a.query, a.key, a.value)
    if all(o.copy != "direct" for o in sides):
        if a.block_m % 16:
            fail(f"{c.stage.name}: {a.block_m} rows are no whole tiles")
        return
    runs = (found.products.reduce[0].extent, found.result.axes[found.column].extent)
    straight = tuple(o.major for o in sides) == ("k", "k", "mn")
    alike = straight and all(o.copy == "direct" for o in sides)
    fits = a.instruction != "wgmma" and a.depth in DIRECT_DEPTHS
    if not (alike and fits) or any(n % DIRECT_RUN for n in runs):
        fail(f"{c.stage.name}: queries, keys and values cannot be read directly")


def _check_rows(c: Checked, a: Attend, found: Attention) -> None:
    """Checks that a task has at most a block of rows, all with the same keys."""
    stage, name, rows = c.stage, c.anchor.out.name, c.step.dims[a.m]
    if c.step.dims[a.n].axes != (found.column,):
        fail(f"{stage.name}: the columns of {name} are others")
    own, together = found.rows, (found.heads, *found.rows)
    if rows.axes not in (own, together):
        fail(f"{stage.name}: the rows of {name} do not all have the same keys")
    run = found.run * math.prod(found.result.axes[p].extent for p in own)
    if rows.axes == together and run % rows.tile:
        fail(f"{stage.name}: a task of {name} has rows of heads that do not share keys")
    if rows.tile > a.block_m:
        fail(f"{stage.name}: a task of {name} has more rows than a block")


def why_not_late(stage: Stage, statements: Statements) -> str | None:
    """Its addresses are those of queries, keys and values."""
    first = stage.steps[0]
    assert isinstance(first.method, Attend)
    blocks = {
        first.method.m: first.method.block_m,
        first.method.n: first.dims[first.method.n].extent,
    }
    if several_blocks(first, blocks):
        return "a task has several blocks"
    return looks_up(first, statements)
