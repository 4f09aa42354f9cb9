"""Checks that a step of a Scatter is valid."""

from monotile.analysis.row_lists import lists_of
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common.collisions import check_apart
from monotile.kernels.family import Checked
from monotile.kernels.scatter.method import Listed, ListRows, Serial
from monotile.kernels.scatter.roles import roles_of
from monotile.plan.invalid import fail


def check(c: Checked) -> None:
    """Fails if two threads or tasks may write to the same element, unless one thread makes these writes in order."""
    method = c.step.method
    if isinstance(method, Listed):
        _check_listed(c, method)
        return
    if isinstance(method, ListRows):
        _check_rows(c, method)
        return
    assert isinstance(method, Serial)
    check_apart(c, {*method.parallel, *_cut(c)})


def _cut(c: Checked) -> set[int]:
    return {k for k, d in enumerate(c.step.dims) if d.stage is not None}


def _check_listed(c: Checked, m: Listed) -> None:
    s, step, name, grid = c.anchor, c.step, c.stage.name, c.stage.grid
    roles = roles_of(s) if isinstance(s, Scatter) else None
    if not isinstance(s, Scatter) or roles is None or len(step.computes) > 1:
        fail(f"{name}: {s.out.name} has no lists of terms")
    if any(d.axes != (p,) or d.lead for p, d in enumerate(step.dims)):
        fail(f"{name}: the dims of {s.out.name} are not its axes")
    if _cut(c) & set(roles.terms):
        fail(f"{name}: tasks of {s.out.name} do not see all of its terms")
    if any(step.dims[p].tile != 1 for p in roles.outer):
        fail(f"{name}: a task of {s.out.name} has several lists of indices")
    if any(d.extent % d.tile for d in step.dims):
        fail(f"{name}: a part of {s.out.name} is shorter than others")
    positions = roles.positions(s)
    if not 0 <= m.axis < len(grid) or any(d.stage == m.axis for d in step.dims):
        fail(f"{name}: no tile axis cuts the positions of {s.out.name}")
    if m.rows < 1 or grid[m.axis] != -(-positions // m.rows):
        fail(f"{name}: tasks have other positions of {s.out.name} than there are")
    if max(positions, roles.count(s)) >= 1 << 31:
        fail(f"{name}: {s.out.name} has more terms or positions than 32 bits count")
    least = min(m.capacity, m.loads, m.lanes, m.each, m.terms)
    warps = c.target.threads // c.target.warp
    if least < 1 or m.lanes & (m.lanes - 1) or m.lanes > c.target.threads:
        fail(f"{name}: {s.out.name} by {m.describe()}")
    if max(m.capacity * warps, m.rows) >= 1 << 16:
        fail(f"{name}: the lists of {s.out.name} are longer than 16 bits count")
    if step.scratch_bytes < m.nbytes(c.target.threads, c.target.warp):
        fail(f"{name}: the lists of {s.out.name} do not fit")


def _check_rows(c: Checked, m: ListRows) -> None:
    """Fails unless the step computes the lists of rows (`ListRows`), and the tasks divide the rows."""
    name, step, grid = c.stage.name, c.step, c.stage.grid
    made = {n: s for n in step.computes if isinstance(s := c.statements[n], Compute)}
    anchor = made.get(step.computes[step.anchor])
    found = lists_of(anchor, made) if anchor is not None else None
    names = step.computes[: step.anchor + 1]
    if found is None or tuple(s.out.name for s in found.statements) != names:
        fail(f"{name}: {step.computes[step.anchor]} is no list of the terms of rows")
        return
    if _cut(c) or len(grid) != 1 or m.axis or m.rows < 1 or grid[0] != -(-found.rows // m.rows):
        fail(f"{name}: tasks have other rows of {found.order.out.name} than there are")
    if max(found.rows, found.terms) >= 1 << 31:
        fail(f"{name}: {found.order.out.name} has more terms or rows than 32 bits count")
    warps = c.target.threads // c.target.warp
    if min(m.capacity, m.loads) < 1 or max(m.capacity * warps, m.rows) >= 1 << 16:
        fail(f"{name}: the lists of {found.order.out.name} are longer than 16 bits count")
    if step.scratch_bytes < m.nbytes(c.target.threads, c.target.warp):
        fail(f"{name}: the lists of {found.order.out.name} do not fit")
