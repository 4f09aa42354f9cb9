"""A Plan as text: one line a stage, one a step, one a tensor.

stage_y: grid [3, 32], workers from 0, after grid barrier
  product, y: axis 0: 64 of 128 by task axis 0; axis 1: 24 of 768 by task axis 1; matmul mma ...
"""

from collections.abc import Iterator, Mapping
from typing import assert_never

from monotile.plan.nodes import (
    Bound,
    Choose,
    Dim,
    Handoff,
    LiveTasks,
    Plan,
    PlanNode,
    Repeat,
    Stage,
    Step,
)
from monotile.plan.places import (
    Final,
    Place,
    Pointer,
    Register,
    Replica,
    Rotate,
    Shared,
    Slice,
    Strip,
    Value,
    Workspace,
)

_WAIT: dict[Handoff, str] = {
    "none": "no wait",
    "block": "after block barrier",
    "grid": "after grid barrier",
}


def show(plan: Plan) -> str:
    """The whole Plan as text, a newline at its end; less than its JSON, which holds every field."""
    return show_stages(plan) + show_places(plan)


def show_stages(plan: Plan) -> str:
    """The launch, and what every worker does in order."""
    launch = plan.launch
    head = (
        f"{plan.target}: {launch.workers} workers x {launch.threads} threads,"
        f" {launch.shared_bytes} bytes on chip each, {launch.workspace_bytes} bytes of workspace"
    )
    if launch.message_bytes:
        head += f", {launch.message_bytes} of messages"
    if launch.ring is not None:
        ring = launch.ring
        head += f", a ring of {ring.slots} x {ring.slot_bytes} bytes at {ring.offset}, {ring.under_way} under way"
    head += f", {launch.index_bits}-bit indices"
    if launch.functions != "inlined":
        head += f", functions {launch.functions}"
    return "\n".join((head, *_nodes(plan.body, ""))) + "\n"


def show_body(body: tuple[PlanNode, ...]) -> str:
    """Stages and loops without a launch, of an unfinished Plan."""
    return "".join(f"{line}\n" for line in _nodes(body, ""))


def show_places(plan: Plan) -> str:
    """The place of every tensor."""
    return show_each_place(plan.places)


def show_each_place(places: Mapping[str, tuple[Place, ...]]) -> str:
    """The places of tensors, by name."""
    lines = (f"{n}: {', '.join(map(show_place, p))}" for n, p in places.items())
    return "\n".join(lines) + "\n"


def _nodes(body: tuple[PlanNode, ...], indent: str) -> Iterator[str]:
    for node in body:
        match node:
            case Repeat(axis, extent, inner):
                ends = f", {node.count} at most" if node.count else ""
                ends += f", while {node.predicate}" if node.predicate else ""
                wait = f", {_WAIT[node.handoff]}" if node.messages or node.ends_early else ""
                wait += f", then {_WAIT[node.again]}" if node.predicate else ""
                yield f"{indent}loop {axis}:{extent}{ends}{wait}"
                for m in node.messages:
                    yield f"{indent}  messages {m.tensor} at {m.offset}"
                for r in node.receives:
                    before = (
                        "" if r.tensor == r.message else f", {r.message} of the iteration before"
                    )
                    yield f"{indent}  {r.stage} receives {r.tensor}{before}: {show_place(r.place)}"
                for r in node.resident:
                    where = "on chip and in registers" if r.held else "on chip"
                    yield f"{indent}  keeps load {r.load} of {r.compute} {where}: {r.nbytes} bytes at {r.offset}"
                yield from _nodes(inner, indent + "  ")
            case Stage():
                live = "".join(f", of axis {x.axis} {_tasks(x)}" for x in node.live)
                first = "everywhere" if node.everywhere else f"workers from {node.first}"
                wait = _WAIT[node.handoff] + (", late" if node.late else "")
                yield f"{indent}{node.name}: grid {list(node.grid)}{live}, {first}, {wait}"
                yield from (f"{indent}  {_step(s)}" for s in node.steps)
            case Choose(index, bodies, handoff):
                yield f"{indent}choose by {index}, {_WAIT[handoff]}"
                for number, inner in enumerate(bodies):
                    yield f"{indent}  {number}:"
                    yield from _nodes(inner, indent + "    ")
            case _:
                assert_never(node)


def _tasks(x: LiveTasks) -> str:
    """The number of tasks in a call."""
    size = x.size if x.inner == 1 else f"{x.size} * {x.inner}"
    return f"{size} / {x.tile}" if x.tile > 1 else size


def _step(s: Step) -> str:
    wait = "(block barrier) " if s.barrier else ""
    dims = "; ".join(_dim(d) for d in s.dims) or "one element"
    live = "".join(f"; {_bound(b)}" for b in s.bounds)
    return f"{wait}{', '.join(s.computes)}: {dims}{live}; {s.method.describe()}"


def _bound(b: Bound) -> str:
    runs = ", ".join(axis if run == 1 else f"{axis} // {run}" for axis, run in b.at)
    at = f"[{runs}]" if runs else ""
    return f"{b.axis} in [{b.first and b.first + at}:{b.last and b.last + at}]"


def _dim(d: Dim) -> str:
    axes = f"axis {d.axes[0]}" if len(d.axes) == 1 else f"axes {'+'.join(map(str, d.axes))}"
    part = (
        f"all {d.extent}" if d.stage is None else f"{d.tile} of {d.extent} by task axis {d.stage}"
    )
    part += f" after {d.lead}" if d.lead else ""
    return f"{axes}: {part}"


def show_place(p: Place) -> str:
    """One place, in a few words. Numbers after a word are bytes; a pointer's is its slot."""
    match p:
        case Value(slot):
            return f"value {slot}"
        case Pointer(slot):
            return f"pointer {slot}"
        case Workspace(offset):
            return f"workspace {offset}"
        case Strip(offset, first, width, pitch):
            return f"workspace {offset}, columns {first} to {first + width - 1} of {pitch}"
        case Shared(offset, box):
            return f"on chip {offset} {[d.extent for d in box]}"
        case Replica(offset):
            return f"on chip {offset} of every worker"
        case Register():
            return "register"
        case Slice(of, axis, stride):
            return f"{show_place(of)} + {axis} * {stride}"
        case Rotate(axis, _, phase, (even, odd), first, last):
            index = axis if phase == 0 else f"{axis} + {phase}"
            ends = f", first {show_place(first)}" if first is not None else ""
            ends += f", last {show_place(last)}" if last is not None else ""
            return f"({show_place(even)} | {show_place(odd)})[({index}) % 2]{ends}"
        case Final(of):
            return f"in the end {show_place(of)}"
        case _:
            assert_never(p)
