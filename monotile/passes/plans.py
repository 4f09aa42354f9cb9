"""What the passes from Program to Plan work on, and each pass as a function of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from monotile.analysis.states import steady_weights
from monotile.choice.chooser import MODEL, Chooser
from monotile.choice.digest import digest_program
from monotile.codegen.view import Views
from monotile.config import Options
from monotile.ir.program import Compute, Program, Scatter, statements
from monotile.kernels.draft import Context
from monotile.kernels.panels import copies
from monotile.passes.table import NOTHING
from monotile.plan.access import Old, overwritten
from monotile.plan.launch import Launch, Ring
from monotile.plan.nodes import Plan, PlanNode, Stage, Step
from monotile.plan.places import Place, replicas_in
from monotile.plan.printer import show, show_body, show_each_place
from monotile.plan.records import ON_CHIP
from monotile.plan.streams import streams
from monotile.plan.walk import nodes_in, stages_in, with_bodies
from monotile.schedule import live as schedule_live
from monotile.schedule.alternate import alternate
from monotile.schedule.handoffs import synchronise
from monotile.schedule.memory import Memory, place
from monotile.schedule.messages import hand_on
from monotile.schedule.one_pass import in_one_pass
from monotile.schedule.order import decisions_first, small_first, streams_first
from monotile.schedule.pinned import hold, keep, kept_bytes
from monotile.schedule.prefetch import prefetch
from monotile.schedule.replicas import replicate
from monotile.schedule.ring import ring
from monotile.schedule.scalars import replicate_scalars
from monotile.schedule.settle import first_threads, settle
from monotile.schedule.sharing import share_workers
from monotile.schedule.spread import spread
from monotile.schedule.stages import stage_name, stages_of
from monotile.schedule.strips import strips
from monotile.schedule.tree import Tree, build, drafts_of
from monotile.targets.target import Target


@dataclass(frozen=True, slots=True)
class PlanState:
    """What exists of a Plan so far.

    program, target, options, context: what it is made of, and for.
    computes:   every Compute and Scatter by the name of its tensor.
    old:        the states' old values that each statement overwrites.
    steady:     weights that the launch does not change.
    tree:       stages in order, loops nested, cut into tasks.
    memory:     a place for every tensor, and the bytes of workspace.
    body:       the Plan's nodes, from `stages` on.
    on_chip:    bytes of on-chip memory that a worker uses so far. message_bytes: of global memory for messages.
    by_barriers: the state before messages, where there are some, until it is decided whether they are worth it.
    ring:       on-chip memory through which weights stream, from `reserve_ring` on.
    plan:       the Plan, from `launch` on.
    """

    program: Program
    target: Target
    options: Options
    context: Context
    computes: dict[str, Compute | Scatter]
    old: Old
    steady: frozenset[str]
    tree: Tree = ()
    memory: Memory | None = None
    body: tuple[PlanNode, ...] = ()
    on_chip: int = 0
    message_bytes: int = 0
    by_barriers: "PlanState | None" = None
    ring: Ring | None = None
    plan: Plan | None = None

    @staticmethod
    def of(
        program: Program,
        target: Target,
        options: Options,
        context: Context | None = None,
        chooser: Chooser | None = None,
    ) -> "PlanState":
        """Where the passes begin. context: what was found before for a program with these weights. chooser: who is asked where there are several
        ways; None: the context's, or the cost model."""
        if options.workers is not None:
            target = msgspec.structs.replace(target, workers=options.workers)
        asked = chooser or (context.chooser if context is not None else MODEL)
        if context is None or context.target != target or context.chooser is not asked:
            context = Context.of(program, target, asked)
        old, steady = overwritten(program), steady_weights(program)
        return PlanState(program, target, options, context, computes_of(program), old, steady)

    @property
    def places(self) -> dict[str, tuple[Place, ...]]:
        """Where tensors live, once that is known."""
        return self.memory.places if self.memory else {}

    def as_plan(self) -> Plan:
        """The Plan as it stands: one that is valid, from `settle_methods` on."""
        assert self.memory is not None
        program, target = self.program, self.target
        launch = Launch(
            workers=target.workers,
            threads=target.threads,
            shared_bytes=self.on_chip,
            workspace_bytes=self.memory.workspace_bytes,
            message_bytes=self.message_bytes,
            ring=self.ring,
            notes_bytes=ON_CHIP if self.options.profile and target.has.scratchpad else 0,
        )
        plan = Plan(
            target=target.name,
            launch=launch,
            inputs=tuple(t.name for t in program.inputs),
            outputs=tuple(t.name for t in program.results),
            weights=tuple(part for w in program.weights for part in w.parts),
            places=self.places,
            body=self.body,
        )
        if not any(w.copied for w in program.weights):
            return plan
        views = Views(program, self.places, self.body)
        panels = copies(self.body, program, views, plan.pointers)
        return msgspec.structs.replace(plan, panels=panels)

    def show(self) -> str:
        """The Plan as text; before it is one, stages, what the cost model says of them, and places."""
        if self.plan is not None:
            return show(self.plan)
        body = self.body or stages_of(self.tree, self.target.workers)
        text = show_body(body)
        if not self.body:
            text += "".join(
                f"{stage_name(d)}: {d.seconds * 1e6:.2f} us by the cost model, {d.shared_bytes} bytes on chip\n"
                for d in drafts_of(self.tree)
            )
        return text + (show_each_place(self.places) if self.places else "")

    def changed(self, before: "PlanState") -> str:
        """How many stages and loops are others now, and what else is new."""
        if self is before:
            return NOTHING
        words = [_drafts(before.tree, self.tree), _nodes(before.body, self.body)]
        if self.memory and self.memory is not before.memory:
            words.append(
                f"{len(self.places)} tensors, {self.memory.workspace_bytes} bytes of workspace"
            )
        if self.message_bytes != before.message_bytes:
            words.append(f"{before.message_bytes} -> {self.message_bytes} bytes of messages")
        if self.ring and self.ring != before.ring:
            words.append(f"a ring of {self.ring.slots} x {self.ring.slot_bytes} bytes")
        if self.on_chip != before.on_chip:
            words.append(f"{before.on_chip} -> {self.on_chip} bytes on chip")
        if self.plan and not before.plan:
            words.append(f"{self.plan.launch.workers} workers x {self.plan.launch.threads} threads")
        return ", ".join(w for w in words if w) or NOTHING


def computes_of(program: Program) -> dict[str, Compute | Scatter]:
    """Every Compute and Scatter by the name of its tensor."""
    return {s.out.name: s for s in statements(program.body) if isinstance(s, (Compute, Scatter))}


def group_and_cut(s: PlanState) -> PlanState:
    """Statements to stages, stages to tasks; none streams weights where the others leave no room for a ring. Raises ScheduleError where no
    way of cutting fits on chip."""
    tree = build(s.program, s.context)
    steps = [step for d in drafts_of(tree) for step in d.steps]
    if any(map(streams, steps)) and ring(steps, _most_on_chip(tree), s.target) is None:
        context = Context(
            s.context.tables, s.target, chooser=s.context.chooser, copied=s.context.copied
        )
        return replace(s, tree=build(s.program, context), context=context)
    return replace(s, tree=tree)


def order(s: PlanState) -> PlanState:
    """What streams weights, and what is small, as early as it may be."""
    return replace(s, tree=streams_first(small_first(s.tree, s.target)))


def decide_first(s: PlanState) -> PlanState:
    """What loops go on by at the beginning of an iteration."""
    return replace(s, tree=decisions_first(s.tree))


def share(s: PlanState) -> PlanState:
    """Stages side by side, each on a share of the workers."""
    return replace(s, tree=share_workers(s.tree, s.context))


def place_tensors(s: PlanState) -> PlanState:
    """A place for every tensor. Beside streamed weights they are small, and bytes of two would cost barriers."""
    streaming = any(streams(step) for d in drafts_of(s.tree) for step in d.steps)
    columns = strips(s.program, s.target)
    return replace(s, memory=place(s.program, s.tree, columns, reuse=not streaming))


def list_stages(s: PlanState) -> PlanState:
    """The tree as the Plan's nodes."""
    on_chip = _most_on_chip(s.tree)
    return replace(s, body=stages_of(s.tree, s.target.workers), on_chip=on_chip)


def one_pass(s: PlanState) -> PlanState:
    """Steps that read the same as one."""
    body, on_chip = in_one_pass(s.body, s.computes, s.on_chip, s.target)
    return replace(s, body=body, on_chip=on_chip)


def _most_on_chip(tree: Tree) -> int:
    """Bytes on chip of the stage that needs most."""
    return max((d.shared_bytes for d in drafts_of(tree)), default=0)


def replicate_results(s: PlanState) -> PlanState:
    """Small results that every worker makes for itself."""
    assert s.memory is not None
    body, places, on_chip = replicate(s.body, s.program, s.computes, s.places, s.on_chip, s.target)
    if body == s.body:
        return s
    memory = replace(s.memory, places=places)
    return replace(s, body=body, memory=memory, on_chip=on_chip)


def decide_everywhere(s: PlanState) -> PlanState:
    """Scalars that decide or bound, made by every worker for itself."""
    assert s.memory is not None
    room = s.target.shared_bytes
    body, places, on_chip = replicate_scalars(s.body, s.program, s.places, s.on_chip, room)
    return replace(s, body=body, memory=replace(s.memory, places=places), on_chip=on_chip)


def reserve_ring(s: PlanState) -> PlanState:
    """On-chip memory for a ring of streamed weights."""
    found = ring(_steps(s.body), s.on_chip, s.target)
    if found is None:
        return s
    end = found.offset + found.nbytes(s.target.threads // s.target.warp)
    return replace(s, ring=found, on_chip=max(end, s.on_chip))


def _steps(body: tuple[PlanNode, ...]) -> list[Step]:
    return [step for stage in stages_in(body) for step in stage.steps]


def bound_walks(s: PlanState) -> PlanState:
    """Walks that leave out what is dead."""
    return replace(s, body=schedule_live.bound_walks(s.body, s.computes, s.target))


def spread_copies(s: PlanState) -> PlanState:
    """The copies that a network begins with as finer tasks."""
    return replace(s, body=spread(s.body, s.target))


def messages(s: PlanState) -> PlanState:
    """Loops whose tasks hand on values themselves."""
    handed = hand_on(s.body, s.program, s.computes, s.places, _base(s), s.old, s.context)
    return replace(
        s,
        body=handed.body,
        on_chip=max(s.on_chip, handed.on_chip),
        message_bytes=handed.message_bytes,
        by_barriers=s if handed.message_bytes else None,
    )


def alternate_scalars(s: PlanState) -> PlanState:
    """Two places for scalars of loops."""
    assert s.memory is not None
    memory = alternate(s.body, s.program, s.memory, lambda places: _synchronised(s, places))
    return s if memory is s.memory else replace(s, memory=memory)


def hand_offs(s: PlanState) -> PlanState:
    """First workers and barriers."""
    return replace(s, body=_synchronised(s, s.places))


def _synchronised(s: PlanState, places: dict[str, tuple[Place, ...]]) -> tuple[PlanNode, ...]:
    changing, workers = s.program.changing, s.target.workers
    return synchronise(s.body, s.computes, places, workers, s.old, changing)


def pin_weights(s: PlanState) -> PlanState:
    """Weights that loops keep on chip."""
    weights, workers = s.steady, s.target.workers
    body, end = keep(s.body, s.computes, s.places, weights, _base(s), s.target, workers)
    return replace(s, body=body, on_chip=max(s.on_chip, end))


def _base(s: PlanState) -> int:
    """On-chip bytes from 0 on that loops have to leave alone: all, where something lies there from stage to stage."""
    replicas = any(replicas_in(p) for places in s.places.values() for p in places)
    return s.on_chip if replicas or s.ring is not None else 0


def messages_or_weights(s: PlanState) -> PlanState:
    """Barriers after all, where loops keep more weights on chip without the room that messages take."""
    if s.by_barriers is None:
        return s
    other = pin_weights(hand_offs(reserve_ring(s.by_barriers)))
    messages = s.context.whether(
        "messages rather than pinned weights",
        lambda yes: -kept_bytes(s.body if yes else other.body),
        shape=lambda: digest_program(s.program),
        first=True,
    )
    return replace(s, by_barriers=None) if messages else other


def settle_methods(s: PlanState) -> PlanState:
    """How the threads of a task share its part."""
    return replace(s, body=settle(s.body, s.program, s.places, s.target))


def hold_in_registers(s: PlanState) -> PlanState:
    """Pinned weights that threads hold in registers."""
    return replace(s, body=hold(s.body, s.computes, s.steady, s.target))


def load_ahead(s: PlanState) -> PlanState:
    """Loads before their use, and stages that wait for their hand-off within their first step."""
    return replace(s, body=prefetch(s.body, s.program, s.places, s.steady, s.target))


def assign_threads(s: PlanState) -> PlanState:
    """Where the threads of a worker begin with a step."""
    return replace(s, body=first_threads(s.body, s.target))


def bound_tasks(s: PlanState) -> PlanState:
    """Stages without the tasks that a size of the call leaves out."""
    return replace(s, body=schedule_live.bound_tasks(s.body, s.program, s.places))


def launch(s: PlanState) -> PlanState:
    """The Plan."""
    return replace(s, plan=s.as_plan())


def _drafts(before: Tree, after: Tree) -> str:
    """In what two trees differ; "" for equal ones."""
    old, new = list(drafts_of(before)), list(drafts_of(after))
    if not before and after:
        return f"{len(new)} stages"
    others = {id(d) for d in new} - {id(d) for d in old}
    if others:
        return f"{len(others)} of {len(new)} stages cut anew"
    moved = any(x is not y for x, y in zip(old, new, strict=True))
    return "stages in another order" if moved else ""


def _nodes(before: tuple[PlanNode, ...], after: tuple[PlanNode, ...]) -> str:
    """In what two bodies differ; "" for equal ones."""
    old, new = list(_flat(before)), list(_flat(after))
    if not old:
        return f"{sum(isinstance(n, Stage) for n in new)} stages" if new else ""
    changed = [x != y for x, y in zip(old, new, strict=True)]
    is_stage = [isinstance(y, Stage) for y in new]
    words: list[str] = []
    for kind, name in ((True, "stages"), (False, "loops and branches")):
        of_kind = [c for c, k in zip(changed, is_stage, strict=True) if k == kind]
        if any(of_kind):
            words.append(f"{sum(of_kind)} of {len(of_kind)} {name}")
    return ", ".join(words)


def _flat(body: tuple[PlanNode, ...]) -> Iterator[PlanNode]:
    """Every stage, and all other nodes without what is in them."""
    for node in nodes_in(body):
        yield node if isinstance(node, Stage) else with_bodies(node, lambda _: ())
