"""What a kernel family is to the rest of the compiler. `registry.py` lists them.

A family knows some shapes of work: how to find it (match), the ways to cut it into tasks and what each costs, what a step of it may
and may not be (check), and how each target spells it. Everything else reaches a family through this page.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monotile.codegen.view import View
from monotile.ir.expr import Load
from monotile.ir.program import At, Compute, Scatter, used
from monotile.kernels.draft import Context, Draft
from monotile.kernels.group import Group
from monotile.plan.nodes import Dim, Method, Prefetch, Stage, Step
from monotile.plan.places import Panels
from monotile.targets.target import Target

Statements = Mapping[str, Compute | Scatter]


@dataclass(frozen=True, slots=True)
class Match:
    """Statements that a family computes as one step: `inner`, in order, and the result that they are for.

    data: what the family wants to know of it when it cuts the step; None: the statements are only to share a stage, step by step.
    kept: names of those of `inner` that are results too: others may read them. faster: than stages of their own, without comparing costs.
    """

    inner: tuple[Compute, ...]
    data: object | None
    kept: frozenset[str] = frozenset()
    faster: bool = False

    def closed(self, result: Compute, uses: Mapping[str, int]) -> bool:
        """Whether nobody else reads what is made on the way. uses: how often each tensor of the Program is mentioned."""
        within = Counter(t.name for s in (*self.inner, result) for t in used(s))
        names = {s.out.name for s in self.inner} - self.kept
        return all(uses[name] == within[name] for name in names)


@dataclass(frozen=True, slots=True)
class RowSite:
    """A step of a task that has several: the task holds a tile of the rows that all of them have in common.

    step: the anchor and what follows it. where: the tile axis that cuts an axis of the anchor, by the axis's position. tiles: rows
    along each tile axis. lead: rows in front, by position. own: tensors that the task holds on chip. room: bytes left there.
    """

    step: tuple[Compute | Scatter, ...]
    where: Mapping[int, int]
    tiles: tuple[int, ...]
    lead: Mapping[int, int]
    own: frozenset[str]
    room: int

    @property
    def anchor(self) -> Compute | Scatter:
        return self.step[0]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(s.out.name for s in self.step)

    @property
    def extents(self) -> dict[str, int]:
        """Of every axis within one task."""
        found = {
            a.name: min(self.tiles[self.where[p]] + self.lead[p], a.extent)
            if p in self.where
            else a.extent
            for p, a in enumerate(self.anchor.axes)
        }
        reduce = self.anchor.reduce if isinstance(self.anchor, Compute) else ()
        return found | {r.name: r.extent for r in reduce}

    @property
    def dims(self) -> tuple[Dim, ...]:
        """One for each axis of the anchor."""
        return tuple(
            Dim((p,), a.extent, self.tiles[self.where[p]], self.where[p], self.lead[p])
            if p in self.where
            else Dim((p,), a.extent, a.extent, None)
            for p, a in enumerate(self.anchor.axes)
        )


@dataclass(frozen=True, slots=True)
class Checked:
    """A step that is to be checked: raise by `plan.invalid.fail`. steady: weights that the launch does not change."""

    step: Step
    view: View
    target: Target
    steady: frozenset[str]

    @property
    def stage(self) -> Stage:
        return self.view.stage

    @property
    def statements(self) -> Statements:
        return self.view.statements

    @property
    def anchor(self) -> Compute | Scatter:
        return self.statements[self.step.computes[self.step.anchor]]


@dataclass(frozen=True, slots=True)
class Prefetching:
    """Step `number` of the view's stage, of which is asked what it may ask for ahead.

    steady: weights that the launch does not change. streamed: weights, where all of them are more than the last-level cache holds.
    loops: axes of those around. pinned: a loop keeps weights of the stage on chip.
    """

    number: int
    view: View
    steady: frozenset[str]
    streamed: frozenset[str]
    loops: frozenset[str]
    pinned: bool
    target: Target

    @property
    def stage(self) -> Stage:
        return self.view.stage

    @property
    def statements(self) -> Statements:
        return self.view.statements

    @property
    def step(self) -> Step:
        return self.stage.steps[self.number]


@dataclass(frozen=True, slots=True)
class Settling:
    """A step of a Plan in which the tasks, the places, what loops keep on chip and what arrives there are settled: of it is asked how a
    task's threads share its part. stage: the view's."""

    step: Step
    view: View
    target: Target

    @property
    def stage(self) -> Stage:
        return self.view.stage

    @property
    def anchor(self) -> Compute | Scatter:
        return self.view.statements[self.step.computes[self.step.anchor]]


@dataclass(frozen=True, slots=True)
class Pinnable:
    """A weight that a step reads alike in every iteration of a loop: Load `number` of the distinct ones of its anchor's body, and the
    bytes that a task reads of it. in_registers: threads may hold it there, by the settled method. vector: elements that a thread may copy at once."""

    load: Load
    number: int
    nbytes: int
    in_registers: bool
    vector: int


# A family's answers, each with what it means to have none.

Cut = Callable[[Group, Context], Iterator[Draft]]
CutInRows = Callable[[RowSite, Context], "tuple[Step, float] | None"]
Find = Callable[[Compute, Mapping[str, Compute], Context], "Match | None"]
WhyNot = Callable[[Stage, Statements], "str | None"]


def _no_cuts(_group: Group, _context: Context) -> Iterator[Draft]:
    return iter(())


def _no_step(_site: RowSite, _context: Context) -> "tuple[Step, float] | None":
    return None


def _not_in_runs(_found: Any, _c: Compute, _at: Sequence[At]) -> bool:
    return False


def _no_match(_c: Compute, _computes: Mapping[str, Compute], _context: Context) -> "Match | None":
    return None


def _not_tiled(_c: Compute, _context: Context) -> bool:
    return False


def _not_in_one(
    _first: Step, _second: Step, _statements: Statements, _target: Target
) -> Step | None:
    return None


def _unbounded(_anchor: Compute, _method: Method, _target: Target) -> bool:
    return False


def _no_prefetch(_where: "Prefetching", _at: str) -> tuple[Prefetch, ...]:
    return ()


def _as_it_is(where: "Settling") -> Method:
    return where.step.method


def _not_pinnable(
    _step: Step, _statements: Statements, _weights: frozenset[str], _target: Target
) -> "tuple[Pinnable, ...]":
    return ()


def _no_panels(_step: Step, _view: View) -> Panels | None:
    return None


def _legal(_site: Checked) -> None:
    pass


def _not_late(_stage: Stage, _statements: Statements) -> "str | None":
    return "it does not begin with a step that looks for its addresses first"


@dataclass(frozen=True, kw_only=True)
class Family:
    """match: the statements before a result that the family computes with it as one step.
    finds: the type of what it matches (`Match.data`); such a group is cut by this family alone.
    in_runs: of what it has matched, whether each task can lie within one run of rows whose ends differ.
    cut: the ways to cut a group into tasks, none where it is not this family's work. exclusive: where there is one, no family after this
    is asked. in_rows: the same for a step of a task with several, with its seconds.
    finer: for methods that are copies of weights, which a network begins with: such a stage with tasks of so many threads (`Method.copies`).
    tiled: whether the family computes a statement in tiles of rows and columns, with operands in a pipeline.
    one_pass: two steps that follow each other in a task as one, where that reads once what both of them read.
    settle: the method of a step with all that is chosen once everything else is known.
    check: raises where a step is not legal. why_not_late: why a stage that begins with such a step cannot wait for its hand-off within it.
    prefetch: what a step asks for at a point ("stage", "handoff", "use"). pinnable: weights that a loop may keep on chip for a step.
    bounded: whether a step with that method leaves out what is dead of its anchor: along reduce axes exactly that (`Step.bounds`).
    panels: the copy of a weight that a step reads (`plan.places.Panels`), without its slot and parts.
    write: how a target spells a step: given the emitter and the step's site, by the emitter's language ("c", "cuda"). write_prefetch: what it
    asks for at "stage", given its number too. write_supply: what the supplier asks for of a step that streams weights. write_tasks: the whole function of a stage, where its only step walks the worker's tasks
    by itself; whether it did.
    """

    name: str
    methods: tuple[type[Method], ...]
    match: Find = _no_match
    finds: type | None = None
    in_runs: Callable[[Any, Compute, Sequence[At]], bool] = _not_in_runs
    cut: Cut = _no_cuts
    exclusive: bool = False
    in_rows: CutInRows = _no_step
    finer: Callable[[Stage, int], Stage] | None = None
    prefetch: Callable[["Prefetching", str], tuple[Prefetch, ...]] = _no_prefetch
    pinnable: Callable[[Step, Statements, frozenset[str], Target], "tuple[Pinnable, ...]"] = (
        _not_pinnable
    )
    tiled: Callable[[Compute, Context], bool] = _not_tiled
    one_pass: Callable[[Step, Step, Statements, Target], Step | None] = _not_in_one
    settle: Callable[["Settling"], Method] = _as_it_is
    check: Callable[[Checked], None] = _legal
    why_not_late: WhyNot = _not_late
    bounded: Callable[[Compute, Method, Target], bool] = _unbounded
    panels: Callable[[Step, View], Panels | None] = _no_panels
    write: Mapping[str, Callable[[Any, Any], None]] = field(default_factory=dict[str, Any])
    write_prefetch: Mapping[str, Callable[[Any, Any, int], None]] = field(
        default_factory=dict[str, Any]
    )
    write_supply: Mapping[str, Callable[[Any, Any], None]] = field(default_factory=dict[str, Any])
    write_tasks: Mapping[str, Callable[[Any, Stage, tuple[str, ...]], bool]] = field(
        default_factory=dict[str, Any]
    )
