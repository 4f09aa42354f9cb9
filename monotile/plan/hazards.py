"""Data hazards between the stages of a loop: whether they may run without grid barriers, apart from what messages bring."""

from collections.abc import Mapping

import msgspec

from monotile.plan.access import Bytes, FirstIterations, Old, access, overlap, replayed
from monotile.plan.nodes import Repeat, Stage
from monotile.plan.parts import Part, Statements, read_part, written_part
from monotile.plan.places import Place


class Touch(msgspec.Struct, frozen=True):
    """part: the bytes that each task accesses; None where that is not known."""

    name: str
    where: Bytes
    part: Part | None

    def clashes(self, other: "Touch") -> bool:
        """Whether tasks of two workers may access the same byte."""
        return overlap(self.where, other.where) and (self.part is None or self.part != other.part)


class Touches(msgspec.Struct, frozen=True):
    """The memory accesses of a stage in one iteration."""

    reads: tuple[Touch, ...]
    writes: tuple[Touch, ...]


def brought_to(stage: Stage, loop: Repeat, iterations: dict[str, int]) -> frozenset[str]:
    """The tensors that messages bring to a stage of `loop` in that iteration."""
    return frozenset(
        r.tensor
        for r in loop.receives
        if r.stage == stage.name and (r.tensor == r.message or iterations[loop.axis])
    )


def touches(
    stage: Stage,
    loop: Repeat,
    statements: Statements,
    places: Mapping[str, tuple[Place, ...]],
    iterations: dict[str, int],
    old: Old,
) -> Touches:
    """The accesses of a stage of a loop with messages, apart from messages."""
    brought = brought_to(stage, loop, iterations)
    first = {r.tensor for r in loop.receives if r.stage == stage.name}
    found = access(stage, statements, dict(places), iterations, old)
    reads = [
        Touch(n, b, None if n in first else read_part(stage, n, statements))
        for n, b in found.reads
        if n not in brought
    ]
    writes = [Touch(n, b, written_part(stage, n, statements)) for n, b in found.writes]
    return Touches(tuple(reads), tuple(writes))


def apart(
    loop: Repeat, statements: Statements, places: Mapping[str, tuple[Place, ...]], old: Old
) -> bool:
    """Whether no task accesses what a task of another worker writes, in the same or another iteration of the loop."""
    reads: list[Touch] = []
    writes: list[Touch] = []
    for i in replayed(loop):
        for stage in loop.body:
            assert isinstance(stage, Stage)
            found = touches(stage, loop, statements, places, FirstIterations({loop.axis: i}), old)
            reads += found.reads
            writes += found.writes
    return not any(
        w is not other and w.clashes(other) for w in writes for other in (*reads, *writes)
    )
