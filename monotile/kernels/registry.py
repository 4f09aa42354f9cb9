"""The kernel families, in order of priority, and functions that dispatch to them.

To add a family: a folder beside this file, and its line here (docs/families.md).
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from monotile.ir.program import At, Compute, Scatter
from monotile.kernels.attention.family import ATTENTION
from monotile.kernels.draft import Context
from monotile.kernels.elementwise.family import ELEMENTWISE
from monotile.kernels.family import Family, Match, RowSite, Statements
from monotile.kernels.gemv.family import GEMV
from monotile.kernels.group import Group
from monotile.kernels.matmul.family import MATMUL
from monotile.kernels.reduction.family import REDUCTION
from monotile.kernels.rowwise.family import ROWWISE
from monotile.kernels.scatter.family import SCATTER
from monotile.kernels.transpose.family import TRANSPOSE
from monotile.plan.nodes import Method, Plan, Stage, Step
from monotile.plan.one_point import one_point
from monotile.targets.target import Target

FAMILIES: tuple[Family, ...] = (
    ATTENTION,
    GEMV,
    MATMUL,
    TRANSPOSE,
    SCATTER,
    ELEMENTWISE,
    REDUCTION,
    ROWWISE,
)
BY_METHOD: dict[type[Method], Family] = {m: f for f in FAMILIES for m in f.methods}
METHODS: dict[str, type[Method]] = {str(m.__struct_config__.tag): m for m in BY_METHOD}  # type: ignore[attr-defined]


def families_for(group: Group) -> tuple[Family, ...]:
    """The families that may cut `group` into tasks: the one that has matched it, else all."""
    if group.match is None:
        return FAMILIES
    return tuple(f for f in FAMILIES if f.finds is type(group.match))


def family_of(method: Method) -> Family:
    """The family of a method."""
    return BY_METHOD[type(method)]


def tiled(s: Compute | Scatter, context: Context) -> bool:
    """Whether a family computes `s` in tiles of rows and columns: a product."""
    return isinstance(s, Compute) and any(f.tiled(s, context) for f in FAMILIES)


def cut_in_rows(site: RowSite, context: Context) -> tuple[Step, float] | None:
    """A step of a task with several, with its seconds, by the first family that takes it."""
    found = (f.in_rows(site, context) for f in FAMILIES)
    fit = (x for x in found if x is not None and suits(x[0], site.step, context.target))
    return next(fit, None)


def match(result: Compute, computes: Mapping[str, Compute], context: Context) -> Match | None:
    """The first family's match for `result`. computes: its possible operands, by name."""
    found = (f.match(result, computes, context) for f in FAMILIES)
    return next((m for m in found if m is not None), None)


def in_runs(found: Match, c: Compute, at: Sequence[At]) -> bool:
    """Whether the family that matched `found`, of which `c` is a reduction, can cut it so that each task is within one of the runs `at`
    of the axes of `c`."""
    return any(f.in_runs(found.data, c, at) for f in FAMILIES if f.finds is type(found.data))


def suits(step: Step, statements: Iterable[Compute | Scatter], target: Target) -> bool:
    """Whether its family skips the dead terms of `statements`, which are the step's. Statements before the anchor have its ends."""
    own = {s.out.name: s for s in statements if isinstance(s, Compute)}
    anchor = own.get(step.computes[step.anchor])
    walked = {x.ends: x for x in anchor.live if one_point(step, anchor, x.at)} if anchor else {}
    before = {*step.computes[: step.anchor + 1]}

    def leaves_out(s: Compute) -> bool:
        terms = [x for x in s.live if x.axis in s.reduce]
        apart = all(not x.at or (s.out.name in before and x.ends in walked) for x in terms)
        return not terms or (apart and family_of(step.method).bounded(s, step.method, target))

    return all(map(leaves_out, own.values()))


def finer_copy(stage: Stage, threads: int) -> Stage:
    """A stage of one copy (`Method.copies`) with tasks of so many threads."""
    finer = family_of(stage.steps[0].method).finer
    assert finer is not None
    return finer(stage, threads)


def why_not_late(stage: Stage, statements: Statements, workers: int) -> str | None:
    """Why `stage` cannot wait for its hand-off within its first step, once that has found its addresses; None if it can."""
    first, *rest = stage.steps
    if any(not b.known for step in stage.steps for b in step.bounds):
        return "how far its tasks go is known behind the hand-off"
    if math.prod(stage.grid) > workers and not first.method.ahead("task"):
        return "a worker has several tasks"
    if any(step.method.reads_first for step in rest):
        return "a later step reads memory before it"
    return family_of(first.method).why_not_late(stage, statements)


def read_plan(text: str | bytes) -> Plan:
    """The Plan of `Plan.to_json`. Raises msgspec.ValidationError if it is invalid."""
    return Plan.from_json(text, METHODS)
