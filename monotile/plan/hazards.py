"""Whether the stages of a loop may run without a barrier of the grid between them, all that messages bring left out."""

from collections.abc import Mapping

import msgspec

from monotile.plan.access import Bytes, FirstIterations, Old, access, overlap, replayed
from monotile.plan.nodes import Repeat, Stage
from monotile.plan.parts import Part, Statements, read_part, written_part
from monotile.plan.places import Place


class Touch(msgspec.Struct, frozen=True):
    """part: which of the bytes each task touches; None where that is not known."""

    name: str
    where: Bytes
    part: Part | None

    def clashes(self, other: "Touch") -> bool:
        """Whether tasks of two workers may touch the same byte."""
        return overlap(self.where, other.where) and (self.part is None or self.part != other.part)


class Touches(msgspec.Struct, frozen=True):
    """What a stage touches in memory in one iteration."""

    reads: tuple[Touch, ...]
    writes: tuple[Touch, ...]


def brought_to(stage: Stage, loop: Repeat, iterations: dict[str, int]) -> frozenset[str]:
    """What messages bring to a stage of `loop` in that iteration."""
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
    """Of a stage of a loop with messages, these left out."""
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
    """Whether no task touches what a task of another worker writes, in this iteration of the loop or another."""
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
