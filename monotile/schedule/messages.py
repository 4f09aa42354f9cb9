"""Point-to-point messages in place of grid barriers, in loops whose tasks pass small values to each other (NCCL's LL protocol).

A grid barrier is a long chain: all stores acknowledged, a counter, its poll, and only then the loads. A message stores a value and its
tag in one store, and the reader polls the value itself. So a hand-off is one store and one load, and a task waits only for the values
that it reads. Messages take twice the bytes, and separate slots for each iteration, so they are for small values: the states of a
recurrence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from monotile.ir.expr import Tensor
from monotile.ir.program import Compute, Loop, Program, Scatter, statements
from monotile.kernels.draft import Context
from monotile.plan.access import Old, chip_end
from monotile.plan.hazards import apart
from monotile.plan.messages import TAGGED, WIDEST, message_stride, receive_vector
from monotile.plan.nodes import Choose, Message, PlanNode, Receive, Repeat, Stage
from monotile.plan.parts import (
    Statements,
    box_of,
    loads_in,
    names_read,
    read_part,
    written_part,
)
from monotile.plan.places import BoxDim, Place, Shared, replicas_in
from monotile.plan.walk import with_bodies
from monotile.schedule.keys import digest_stages
from monotile.targets.target import Target

ALIGN = 256
CHIP_ALIGN = 128
FEWEST = 4  # iterations that amortise the barrier before them
CACHE_PART = 4  # fraction (1/n) of the last-level cache for all messages of a Plan
POLLED = 6  # vectors that a thread may poll repeatedly without delaying the stores
CROWD = 2.5  # latencies that polling more than that costs


@dataclass(frozen=True, slots=True)
class Handed:
    """body: with messages. on_chip: the end of the bytes for received values, 0 if there are none. message_bytes: of all messages."""

    body: tuple[PlanNode, ...]
    on_chip: int
    message_bytes: int


def hand_on(
    body: tuple[PlanNode, ...],
    program: Program,
    computes: Statements,
    places: Mapping[str, tuple[Place, ...]],
    base: int,
    old: Old,
    context: Context,
) -> Handed:
    """`body` with messages in those loops that become faster with them.

    base: bytes from 0 of a worker's on-chip memory that are not free in any loop.
    """
    if not context.target.has.messages:
        return Handed(body, 0, 0)
    loops = {s.axis.name: s for s in statements(program.body) if isinstance(s, Loop)}
    found = _Hander(loops, computes, dict(places), old, context, base)
    return Handed(found.nodes(body), found.most, found.used)


@dataclass(slots=True)
class _Hander:
    loops: dict[str, Loop]
    computes: Statements
    places: dict[str, tuple[Place, ...]]
    old: Old
    context: Context
    base: int
    used: int = 0  # of the message memory
    most: int = 0  # end of the received values on chip

    @property
    def target(self) -> Target:
        return self.context.target

    def nodes(self, body: tuple[PlanNode, ...]) -> tuple[PlanNode, ...]:
        return tuple(self._node(n) for n in body)

    def _node(self, node: PlanNode) -> PlanNode:
        if isinstance(node, Stage):
            return node
        if isinstance(node, Choose) or node.ends_early:
            return with_bodies(node, self.nodes)
        stages = tuple(n for n in node.body if isinstance(n, Stage))
        if len(stages) < len(node.body):
            return with_bodies(node, self.nodes)
        if node.extent < FEWEST:
            return node
        return self._alone(node, stages) or self._beside_barriers(node, stages) or node

    def _alone(self, node: Repeat, stages: tuple[Stage, ...]) -> Repeat | None:
        """The loop with messages in place of all grid barriers."""
        found = self._receives(node, stages)
        if not found or not self._worth(node, stages, found):
            return None
        first = self._first_workers(_Makers.of(self.loops[node.axis], stages), stages)
        body = tuple(
            msgspec.structs.replace(s, handoff="block", first=w)
            for s, w in zip(stages, first, strict=True)
        )
        return self._handed(node, body, found)

    def _first_workers(self, makers: "_Makers", stages: tuple[Stage, ...]) -> list[int]:
        """The first worker of each stage. Stages that pass nothing to each other have separate workers if there are enough. All others
        begin with worker 0, so that values that a task passes to itself stay on one worker."""
        chains = makers.chains(stages, self.computes)
        first = [0] * len(stages)
        end = 0
        for chain in chains:
            for number in chain:
                first[number] = end
            end += max(math.prod(stages[k].grid) for k in chain)
        return first if end <= self.target.workers else [0] * len(stages)

    def _beside_barriers(self, node: Repeat, stages: tuple[Stage, ...]) -> Repeat | None:
        """The loop with messages for what every worker reads in full for stages that it runs for itself; the other stages wait for
        barriers."""
        makers = _Makers.of(self.loops[node.axis], stages)
        found: list[_Wanted] = []
        for number, stage in enumerate(stages):
            if stage.everywhere:
                found += self._received_by(makers, stages, number) or ()
        if not found or not self._worth(node, stages, found):
            return None
        return self._handed(node, stages, found)

    def _handed(
        self, node: Repeat, body: tuple[Stage, ...], found: "list[_Wanted]"
    ) -> Repeat | None:
        messages, nbytes = self._messages(node, found)
        receives, end = self._placed(body, found)
        handed = msgspec.structs.replace(node, body=body, messages=messages, receives=receives)
        fits = end <= self.target.shared_bytes
        small = nbytes <= self.target.l2_bytes // CACHE_PART
        if not (fits and small):
            return None
        if handed.only_messages and not apart(handed, self.computes, self.places, self.old):
            return None
        self.used, self.most = nbytes, max(self.most, end)
        return handed

    def _worth(self, node: Repeat, stages: tuple[Stage, ...], found: "list[_Wanted]") -> bool:
        """Whether the hand-offs of an iteration are to be messages."""
        return self.context.whether(
            "messages",
            lambda yes: (self._seconds if yes else self._barrier_seconds)(stages, found),
            shape=lambda: digest_stages(self.context, self.loops[node.axis], stages),
        )

    def _receives(self, node: Repeat, stages: tuple[Stage, ...]) -> "list[_Wanted] | None":
        """What the tasks of all stages read of each other's values; None where messages cannot carry that."""
        makers = _Makers.of(self.loops[node.axis], stages)
        out: list[_Wanted] = []
        for number, stage in enumerate(stages):
            if math.prod(stage.grid) > self.target.workers:
                return None
            if any(isinstance(self.computes[n], Scatter) for s in stage.steps for n in s.computes):
                return None
            found = self._received_by(makers, stages, number)
            if found is None:
                return None
            out += found
        return out

    def _received_by(
        self, makers: "_Makers", stages: tuple[Stage, ...], number: int
    ) -> "list[_Wanted] | None":
        """What tasks of stage `number` read of other tasks' values; None where messages cannot carry that."""
        made, source = makers.made, makers.source
        stage, out = stages[number], list[_Wanted]()
        for name in names_read(stage, self.computes):
            message = source.get(name, name)
            if (name not in made and name not in source) or self._is_own(name):
                continue
            maker = made.get(message)
            if maker is None or (name == message and maker >= number):
                return None
            part = read_part(stage, name, self.computes)
            if part is None or part != written_part(stages[maker], message, self.computes):
                t = self.computes[message].out
                wanted = _Wanted(stage, Tensor(name, t.shape, t.dtype), message)
                if not self._possible(wanted, stages[maker]):
                    return None
                out.append(wanted)
        return out

    def _is_own(self, name: str) -> bool:
        """Whether every worker computes it for itself."""
        return any(replicas_in(p) for p in self.places[name])

    def _possible(self, w: "_Wanted", maker: Stage) -> bool:
        """Whether the steps can read it on chip, its values can carry a tag, and all of it is written."""
        made = next(s for s in maker.steps if w.message in s.computes)
        if (
            made.bounds
            or not made.method.sends
            or w.message not in made.computes[made.anchor :]
            or not isinstance(self.computes[w.message], Compute)
        ):
            return False
        plain = all(
            step.method.reads_shared
            for step, _, _ in loads_in(w.stage, w.tensor.name, self.computes)
        )
        return plain and w.tensor.dtype.itemsize <= WIDEST and w.tensor.nbytes > 0

    def _messages(self, node: Repeat, found: "list[_Wanted]") -> tuple[tuple[Message, ...], int]:
        """The messages, and the end of their memory."""
        end = self.used
        out: list[Message] = []
        for name in dict.fromkeys(w.message for w in found):
            out.append(Message(name, end))
            size = node.extent * message_stride(self.computes[name].out)
            end += -(-size // ALIGN) * ALIGN
        return tuple(out), end

    def _placed(
        self, body: tuple[Stage, ...], found: "list[_Wanted]"
    ) -> tuple[tuple[Receive, ...], int]:
        """The on-chip place of each message, after the loop's own on-chip memory, and the end of the last. Stages share these bytes."""
        taken = max(self.base, *(chip_end(s, self.computes, self.places) for s in body))
        ends: dict[str, int] = {}
        out: list[Receive] = []
        for w in found:
            at = ends.get(w.stage.name, -(-taken // CHIP_ALIGN) * CHIP_ALIGN)
            box = box_of(w.stage, w.tensor, self.computes)
            place = Shared(at, box, box[-1].extent if box else 1)
            vector = receive_vector(box, w.tensor)
            out.append(Receive(w.stage.name, w.tensor.name, w.message, place, vector))
            size = math.prod(b.extent for b in box) * w.tensor.dtype.itemsize
            ends[w.stage.name] = at + -(-size // CHIP_ALIGN) * CHIP_ALIGN
        return tuple(out), max(ends.values())

    def _seconds(self, stages: tuple[Stage, ...], found: "list[_Wanted]") -> float:
        """Seconds of an iteration's hand-offs by messages."""
        waits = {w.stage.name for w in found}
        crowded = CROWD * self.target.latency_seconds * sum(map(self._crowded, found))
        return len(waits) * self.target.message_seconds + self._moved(found, TAGGED) + crowded

    def _crowded(self, w: "_Wanted") -> bool:
        """Whether its threads poll so many vectors that they delay the stores."""
        box = box_of(w.stage, w.tensor, self.computes)
        vectors = math.prod(b.extent for b in box) // receive_vector(box, w.tensor)
        return vectors > POLLED * self.target.threads

    def _barrier_seconds(self, stages: tuple[Stage, ...], found: "list[_Wanted]") -> float:
        """Seconds of the same hand-offs by barriers, after which the values are still to be loaded."""
        waits = {w.stage.name for w in found}
        each = self.target.barrier_seconds + self.target.latency_seconds
        return len(waits) * each + self._moved(found, 0)

    def _moved(self, found: "list[_Wanted]", size: int) -> float:
        """Seconds to load all that the tasks of an iteration read. size: bytes of a value, 0 for the size of its dtype."""
        total = 0.0
        for w in found:
            box: tuple[BoxDim, ...] = box_of(w.stage, w.tensor, self.computes)
            nbytes = math.prod(b.extent for b in box) * (size or w.tensor.dtype.itemsize)
            tasks = self.target.workers if w.stage.everywhere else math.prod(w.stage.grid)
            every = nbytes * tasks / self.target.l2_bandwidth
            total += max(every, nbytes / self.target.worker_bandwidth)
        return total


@dataclass(frozen=True, slots=True)
class _Makers:
    """The producers of a loop's tensors. made: the stage that computes each. source: maps each carried param to the result of the
    iteration before."""

    made: Mapping[str, int]
    source: Mapping[str, str]

    @staticmethod
    def of(loop: Loop, stages: tuple[Stage, ...]) -> "_Makers":
        made = {n: i for i, s in enumerate(stages) for step in s.steps for n in step.computes}
        return _Makers(made, {c.param.name: c.result.name for c in loop.carried})

    def chains(self, stages: tuple[Stage, ...], computes: Statements) -> list[list[int]]:
        """The numbers of stages that pass values to each other, directly or transitively, within an iteration or to the next."""
        chain = list(range(len(stages)))
        for number, stage in enumerate(stages):
            for name in names_read(stage, computes):
                maker = self.made.get(self.source.get(name, name))
                if maker is not None and chain[maker] != chain[number]:
                    old, new = chain[number], chain[maker]
                    chain = [new if c == old else c for c in chain]
        return [[k for k, c in enumerate(chain) if c == one] for one in dict.fromkeys(chain)]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A stage that reads `tensor`, under the message's name in that stage."""

    stage: Stage
    tensor: Tensor
    message: str
