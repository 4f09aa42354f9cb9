"""Memory accesses of a Plan: which bytes a stage reads and writes in one iteration of its loops, and on which workers."""

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from monotile.analysis.dependence import loads_of
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Tensor
from monotile.ir.program import Compute, Program, Scatter, updates, used
from monotile.plan.nodes import Body, Choose, Repeat, Stage
from monotile.plan.places import (
    ON_CHIP,
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
from monotile.plan.walk import repeats

Columns = tuple[
    int, int, int
]  # of a matrix: bytes of its rows; first byte, and byte after the last, in each
# Space, first byte, byte after the last; for a strip those of its matrix, and its columns.
Bytes = tuple[str, int, int] | tuple[str, int, int, Columns]
Span = tuple[str, int, int]  # on chip: name, first byte, byte after the last
WORKSPACE = "workspace"
REPLICA = "replica"  # the space of on-chip tensors that every worker has for itself


def resolve(p: Place, nbytes: int, iterations: dict[str, int]) -> tuple[Bytes, ...]:
    """The bytes of a tensor of `nbytes` at `p` that outlive a stage; none for a tensor that is on chip within one, or has no elements."""
    if nbytes == 0:
        return ()
    match p:
        case Pointer(slot) | Value(slot):
            return ((f"pointer {slot}", 0, nbytes),)
        case Workspace(offset):
            return ((WORKSPACE, offset, offset + nbytes),)
        case Strip(offset, first, width, pitch, size):
            rows = nbytes // (width * size)
            columns = pitch * size, first * size, (first + width) * size
            return ((WORKSPACE, offset, offset + rows * pitch * size, columns),)
        case Replica(offset):
            return ((REPLICA, offset, offset + nbytes),)
        case Shared() | Register():
            return ()
        case Slice(of, axis, stride):
            shift = iterations[axis] * stride
            whole = resolve(of, nbytes, iterations)
            return tuple((b[0], b[1] + shift, b[2] + shift) for b in whole)
        case Rotate(axis, extent, phase, places, first, last):
            i = iterations[axis]
            if i == 0 and first is not None:
                return resolve(first, nbytes, iterations)
            if i == extent - 1 and last is not None:
                return resolve(last, nbytes, iterations)
            return resolve(places[(i + phase) % 2], nbytes, iterations)
        case Final(of):  # whichever iteration was the last
            after = {0: of.first} | {i: of.places[i % 2] for i in range(1, min(of.extent, 2) + 1)}
            ends = (p for p in after.values() if p is not None)
            return tuple(b for p in ends for b in resolve(p, nbytes, iterations))


class Access(msgspec.Struct, frozen=True):
    """The accesses of a stage in one iteration: (tensor, bytes) each."""

    reads: tuple[tuple[str, Bytes], ...]
    writes: tuple[tuple[str, Bytes], ...]


Old = Mapping[str, tuple[Tensor, ...]]


def overwritten(program: Program) -> Old:
    """Maps each state's new value to the tensors whose bytes it replaces."""
    return {u.result.name: u.old for u in updates(program)}


def watched_tensors(program: Program, places: Mapping[str, tuple[Place, ...]]) -> frozenset[str]:
    """The tensors that the host polls: the watched inputs, and tensors with the same place."""
    inputs = {p for name in program.watched for p in places[name]}
    return frozenset(name for name, found in places.items() if inputs.intersection(found))


def access(
    stage: Stage,
    statements: dict[str, Compute | Scatter],
    places: dict[str, tuple[Place, ...]],
    iterations: dict[str, int],
    old: Old,
    brought: frozenset[str] = frozenset(),
) -> Access:
    """The accesses of a stage. old: the result of `overwritten`. brought: tensors that arrive otherwise, as messages. Of a
    table in which a loop has an entry for each iteration, the entry."""
    own = brought | {name for step in stage.steps for name in step.computes}
    reads: list[tuple[str, Bytes]] = []
    writes: list[tuple[str, Bytes]] = []
    for name in (n for step in stage.steps for n in step.computes):
        s = statements[name]
        for t in dict.fromkeys(used(s)):
            in_place = isinstance(s, Scatter) and t == s.base  # its bytes are among the writes
            if t.name not in own and not in_place:
                at = [x.index for x in loads_of(s) if x.tensor == t]
                reads.extend(
                    (t.name, b) for b in _entries(t, at, read_place(t, places), iterations)
                )
        written = [s.index] if isinstance(s, Scatter) else []
        for t in (s.out, *old.get(name, ())):
            for p in places[t.name]:
                writes.extend((name, b) for b in _entries(t, written, p, iterations))
    return Access(tuple(reads), tuple(writes))


def _entries(
    t: Tensor, at: Sequence[tuple[Expr, ...]], place: Place, iterations: dict[str, int]
) -> tuple[Bytes, ...]:
    """The bytes of `t` at `place`; where all indices `at` begin with a loop's iteration, of that entry of a table alone."""
    whole = resolve(place, t.nbytes, iterations)
    first = {index[0] for index in at if index}
    axis = first.pop() if len(first) == 1 and isinstance(place, Pointer) else None
    if not isinstance(axis, Axis) or axis.name not in iterations or axis.extent > t.shape[0]:
        return whole
    each = t.nbytes // t.shape[0]
    begin = iterations[axis.name] * each
    return tuple((space, begin, begin + each) for space, *_ in whole)


def looked_at(node: Repeat | Choose) -> tuple[str, int]:
    """The scalar that a loop or branch reads, and its size in bytes: an iteration count is an int64; a predicate, or the index of a
    branch, a bool."""
    if isinstance(node, Repeat) and node.count:
        return node.count, DType.I64.itemsize
    return node.predicate if isinstance(node, Repeat) else node.index, DType.BOOL.itemsize


def resolve_look(
    node: Repeat | Choose, places: Mapping[str, tuple[Place, ...]], iterations: dict[str, int]
) -> tuple[Bytes, ...]:
    """Exactly the bytes that all workers read before `node`; bytes next to them may be in use by any worker."""
    name, nbytes = looked_at(node)
    place = next(p for p in places[name] if not isinstance(p, Shared))
    return resolve(place, nbytes, iterations)


class FirstIterations(dict[str, int]):
    """Iterations by axis; 0 for loops that are not named."""

    def __missing__(self, axis: str) -> int:
        return 0


def replayed(loop: Repeat) -> list[int]:
    """The iterations that represent all: carried values alternate between two buffers, and the last iteration may write to a third
    place. Even and odd ones alternate."""
    last = 3 if loop.ends_early else loop.extent - 1
    some = {0, 1, 2, last - (last + 1) % 2, last}
    return sorted(i for i in some if 0 <= i < loop.extent)


def read_place(t: Tensor, places: dict[str, tuple[Place, ...]]) -> Place:
    """The place from which stages other than the one that computes `t` read it."""
    return next(p for p in places[t.name] if not isinstance(p, Shared))


def overlap(a: Bytes, b: Bytes) -> bool:
    if len(a) == 4 and len(b) == 4 and (a[:3], a[3][0]) == (b[:3], b[3][0]):  # of one matrix
        return a[3][1] < b[3][2] and b[3][1] < a[3][2]
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def worker_of(stage: Stage, plan_workers: int) -> int | None:
    """The one worker that runs the stage, or None if several do."""
    if stage.everywhere:
        return None
    tasks = 1
    for count in stage.grid:
        tasks *= count
    return stage.first % plan_workers if tasks == 1 else None


def workers_of(stage: Stage, plan_workers: int) -> frozenset[int]:
    """The workers that run tasks of the stage."""
    tasks = plan_workers if stage.everywhere else min(math.prod(stage.grid), plan_workers)
    return frozenset((stage.first + t) % plan_workers for t in range(tasks))


def on_chip(stage: Stage, places: dict[str, tuple[Place, ...]]) -> bool:
    """Whether the stage uses on-chip memory."""
    return any(
        step.scratch_bytes or any(isinstance(p, ON_CHIP) for n in step.computes for p in places[n])
        for step in stage.steps
    )


def chip_end(
    stage: Stage, computes: Mapping[str, Compute | Scatter], places: Mapping[str, tuple[Place, ...]]
) -> int:
    """The end of the on-chip bytes that the stage uses for itself."""
    results = (high for _, _, high in chip_results(stage, computes, places))
    return max(*(step.scratch + step.scratch_bytes for step in stage.steps), *results, 0)


def chip_results(
    stage: Stage, computes: Mapping[str, Compute | Scatter], places: Mapping[str, tuple[Place, ...]]
) -> Iterator[Span]:
    """The on-chip bytes of the stage's own results."""
    for name in (n for step in stage.steps for n in step.computes if n in computes):
        size = computes[name].out.dtype.itemsize
        for p in (p for p in places.get(name, ()) if isinstance(p, Shared)):
            yield name, p.offset, p.offset + p.elements * size


def received_bytes(
    stage: Stage, body: Body, computes: Mapping[str, Compute | Scatter]
) -> Iterator[Span]:
    """The on-chip bytes of messages that the stage receives in the loops of `body`."""
    for r in (r for node in repeats(body) for r in node.receives if r.stage == stage.name):
        size = math.prod(b.extent for b in r.place.box) * computes[r.message].out.dtype.itemsize
        yield f"the message {r.tensor}", r.place.offset, r.place.offset + size
