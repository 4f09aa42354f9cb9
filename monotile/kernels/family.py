"""The interface of a kernel family. `registry.py` lists the families.

A family handles some kinds of computation: how to find it (match), the ways to cut it into tasks and the cost of each, which steps are
valid (check), and how each target emits it. Everything else uses a family through this file alone.
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
    """Statements that a family computes as one step: `inner`, in order, and the result that they lead to.

    data: the family's own data for cutting the step; None: the statements only share a stage, step by step. kept: names of those of
    `inner` that are results too: others may read them. faster: than separate stages, without comparing costs.
    """

    inner: tuple[Compute, ...]
    data: object | None
    kept: frozenset[str] = frozenset()
    faster: bool = False

    def closed(self, result: Compute, uses: Mapping[str, int]) -> bool:
        """Whether the intermediate results have no other readers. uses: how often each tensor of the Program is used."""
        within = Counter(t.name for s in (*self.inner, result) for t in used(s))
        names = {s.out.name for s in self.inner} - self.kept
        return all(uses[name] == within[name] for name in names)


@dataclass(frozen=True, slots=True)
class RowSite:
    """A step of a task that has several: the task holds a tile of the rows that all of them have in common.

    step: the anchor and its epilogue. where: the tile axis that cuts an axis of the anchor, by the axis's position. tiles: rows along
    each tile axis. lead: leading rows, by position. own: tensors that the task holds on chip. room: bytes left there.
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
        """The extent of every axis within one task."""
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
    """A step to be checked; errors are raised by `plan.invalid.fail`. steady: weights that the launch does not change."""

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
    """Step `number` of the view's stage, for which a family lists prefetches.

    steady: weights that the launch does not change. streamed: weights, if together they exceed the last-level cache. loops: axes of the
    enclosing loops. pinned: a loop keeps weights of the stage on chip.
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
    """A step of a Plan whose tasks, places, pinned weights and received messages are fixed: a family chooses how a task's threads divide
    its part. stage: the view's."""

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
    """A weight of which a step reads the same in every iteration of a loop: Load `number` of the distinct ones of its anchor's body, and
    the bytes that a task reads of it. in_registers: threads may hold it there, by the settled method. vector: elements that a thread
    may copy at once."""

    load: Load
    number: int
    nbytes: int
    in_registers: bool
    vector: int


# A family's callbacks, each with its default result.

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
    """match: the statements before a result that the family computes together with it as one step.
    finds: the type of what it matches (`Match.data`); such a group is cut by this family alone.
    in_runs: for a match, whether each task can stay within one run of rows with equal ends.
    cut: the ways to cut a group into tasks, none for a group of another family. exclusive: if there is one, no later family is tried.
    in_rows: the same for a step of a task with several, with its seconds.
    finer: for methods that copy weights, with which a network begins: such a stage with tasks of so many threads (`Method.copies`).
    tiled: whether the family computes a statement in tiles of rows and columns, with operands in a pipeline.
    one_pass: two consecutive steps of a task as one, where that reads common operands once.
    settle: the method of a step with all that is chosen once everything else is known.
    check: raises if a step is invalid. why_not_late: why a stage that begins with such a step cannot wait for its hand-off within it.
    prefetch: what a step prefetches at a point ("stage", "handoff", "use"). pinnable: weights that a loop may keep on chip for a step.
    bounded: whether a step with that method skips dead elements of its anchor: along reduction axes exactly (`Step.bounds`).
    panels: the copy of a weight that a step reads (`plan.places.Panels`), without its slot and parts.
    write: emits a step: given the emitter and the step's site, by the emitter's language ("c", "cuda"). write_prefetch: emits its
    prefetches at "stage", given its number too. write_supply: emits the producer warp's loads for a step that streams weights, or prefetches at
    "ring".
    write_tasks: emits the whole function of a stage, where its only step walks the worker's tasks itself; gives whether it did.
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
