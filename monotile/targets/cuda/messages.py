"""Messages of a loop: received parts as separate on-chip tensors, and the code that sends and waits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from monotile.analysis.dependence import loads_of
from monotile.codegen.address import coordinates, loop_variable
from monotile.codegen.base import SMALL_FLOATS, STORAGE
from monotile.codegen.packs import lane_of
from monotile.codegen.site import Site, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.ir.expr import Axis, Expr, Load, Tensor, add, binary, idx, map_loads, mul
from monotile.ir.program import Compute, Scatter
from monotile.plan.messages import message_stride
from monotile.plan.nodes import Plan, Receive, Stage
from monotile.plan.places import BoxDim, Shared
from monotile.plan.walk import repeats


@dataclass(frozen=True, slots=True)
class Slots:
    """The memory of the message `tensor`: `offset` bytes into the workspace, `stride` an iteration of the loop over `axis`."""

    tensor: Tensor
    axis: str
    offset: int
    stride: int

    def of(self, back: int) -> str:
        """Text of the address of the message of the current iteration, or of the one `back` before."""
        turn = loop_variable(self.axis)
        turn = f"({turn} - {back})" if back else turn
        return f"workspace + {self.offset} + {turn} * (size_t){self.stride}"


@dataclass(frozen=True, slots=True)
class Received:
    """`read`, as the Program names it, and `image`, which holds a task's part of it on chip."""

    receive: Receive
    slots: Slots
    read: Tensor
    image: Tensor

    @property
    def place(self) -> Shared:
        return self.receive.place

    @property
    def carried(self) -> bool:
        """Whether it is the message of the iteration before."""
        return self.receive.tensor != self.receive.message


def slots_of(plan: Plan, computes: Mapping[str, Compute | Scatter]) -> dict[str, Slots]:
    """The Plan's messages, by name."""
    first = plan.launch.workspace_bytes
    return {
        m.tensor: Slots(t, node.axis, first + m.offset, message_stride(t))
        for node in repeats(plan.body)
        for m in node.messages
        for t in (computes[m.tensor].out,)
    }


def received_of(plan: Plan, slots: Mapping[str, Slots]) -> tuple[Received, ...]:
    """All that stages receive."""
    receives = [r for node in repeats(plan.body) for r in node.receives]
    out: list[Received] = []
    for number, r in enumerate(receives):
        t = slots[r.message].tensor
        read = Tensor(r.tensor, t.shape, t.dtype)
        image = Tensor(f"{r.tensor}_here{number}", t.shape, t.dtype)
        out.append(Received(r, slots[r.message], read, image))
    return tuple(out)


def steps_before(
    stage: Stage, received: tuple[Received, ...], computes: Mapping[str, Compute | Scatter]
) -> int:
    """How many of the stage's first steps read nothing that it receives: they run while that is under way."""
    names = {r.receive.tensor for r in received}
    reads = (
        {x.tensor.name for n in step.computes for x in loads_of(computes[n])}
        for step in stage.steps
    )
    return next((k for k, read in enumerate(reads) if read & names), 0)


def on_chip(site: Site, received: tuple[Received, ...]) -> Site:
    """The step, reading on chip what its stage has received."""
    images = {r.read.name: r.image for r in received}

    def here(x: Load) -> Load:
        return Load(images[x.tensor.name], x.index) if x.tensor.name in images else x

    def moved(s: Compute | Scatter) -> Compute | Scatter:
        if isinstance(s, Scatter):
            return s
        return msgspec.structs.replace(s, body=map_loads(s.body, here))

    before, followers = tuple(map(moved, site.before)), tuple(map(moved, site.followers))
    return replace(site, before=before, anchor=moved(site.anchor), followers=followers)


def write_send(e: VectorEmitter, slots: Slots, offset: str, value: str) -> None:
    """Hands on an element, at `offset` in its tensor."""
    small = SMALL_FLOATS.get(slots.tensor.dtype)
    word = f"mt::to_{small}({value}).bits" if small else value
    kind = STORAGE[slots.tensor.dtype]
    e.writer.write(f"mt::send<{kind}>({slots.of(0)}, {bare(offset)}, {word}, tag);")


def write_receive(e: VectorEmitter, r: Received, stage: Stage) -> None:
    """Brings on chip what a task reads of a message, whose tags tell when it is there."""
    w = e.writer
    image = e.pointer(r.image, r.place, idx(0))
    count = math.prod(b.extent for b in r.place.box) // r.receive.vector
    threads = e.plan.launch.threads
    if r.carried:
        turn = loop_variable(r.slots.axis)
        with w.open(f"if ({turn} == 0)", fence=True):
            head = f"for (idx e = threadIdx.x; e < {count}; e += {threads})"
            with w.open(head, ["e"], fence=True), e.vector(r.receive.vector):
                text = e.root(
                    Load(r.read, _index(r, stage, count, lane_of(r.receive.vector), inside=True))
                )
                here = _index(r, stage, count, lane_of(r.receive.vector), inside=False)
                e.write(r.image, here, r.place, text)
    kind = STORAGE[r.read.dtype]
    call = f"mt::receive<{kind}, {r.receive.vector}, {count}, {threads}>"
    head = f"{call}({image}, {r.slots.of(int(r.carried))}, tag, [&](idx e)"
    with (
        w.open("else" if r.carried else "", fence=True),
        w.open(head, ["e"], fence=True, tail=");"),
    ):
        flat: Expr = idx(0)
        for i, n in zip(_index(r, stage, count, idx(0), inside=True), r.read.shape, strict=True):
            flat = add(mul(flat, idx(n)), i)
        w.write(f"return {bare(e.index(flat))};")


def _index(r: Received, stage: Stage, count: int, lane: Expr, *, inside: bool) -> tuple[Expr, ...]:
    """The index of lane `lane` of vector `e`. inside: clamped to the last vector of the tensor."""
    box, task = r.place.box, coordinates(stage.grid)
    axes = [Axis(f"b{k}", b.extent) for k, b in enumerate(box)]
    if axes:
        axes[-1] = Axis(axes[-1].name, axes[-1].extent // r.receive.vector)
    at = unflatten(Axis("e", count), axes)
    out: list[Expr] = []
    for k, (b, a, n) in enumerate(zip(box, axes, r.read.shape, strict=True)):
        last = k == len(box) - 1
        i = mul(at[a.name], idx(r.receive.vector)) if last else at[a.name]
        if b.stage is not None:
            i = add(mul(task[b.stage], idx(b.tile)), i)
            if inside and _past(b, stage, n):
                i = binary("min", i, idx(n - r.receive.vector if last else n - 1))
        out.append(add(i, lane) if last else i)
    return tuple(out)


def _past(b: BoxDim, stage: Stage, extent: int) -> bool:
    """Whether the last task's box goes past the end of the dimension."""
    return b.stage is not None and (stage.grid[b.stage] - 1) * b.tile + b.extent > extent
