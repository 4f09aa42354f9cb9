"""The Plan: a Program in time and space. Frozen, printable, JSON both ways; the emitters add nothing to it.

Vocabulary (Rammer's rTask, Welder's tile graph)
- A worker is a resident thread block (CUDA) or a thread (CPU). All workers run the Plan's body together.
- A Stage is cut into tasks. `grid` says how many along each of its tile axes; task numbers are row-major. Task t runs on worker (first + t)
  % workers. On a CPU a worker has neighbouring tasks, for the data of the stage before that is in its cache. A worker runs its tasks in
  ascending order.
- A Step is one Compute (the anchor) and its epilogue: Computes, and parts of full reductions (`gather.py`), that follow it element by
  element, held in a register (`computes`, in order). Before its anchor come the intermediate results of an Attend, the product of a
  MatmulGate, and one-per-row values of HoldRows or MatmulRows. A task runs its stage's steps one after the other; with `barrier` the
  threads of the worker synchronise before the step.
- A Dim is how a step's task walks some of the anchor's axes, flattened row-major: the task at coordinate c along tile axis `stage` covers
  [c * tile, min(extent, (c + 1) * tile)). With a `lead`, that many positions come before these: the task covers the same plus `lead`, and
  the first task also all leading ones. Every task walks a Dim whole if its `stage` is None. A step's dims name each axis of the anchor
  once.
- `handoff` is what a worker waits for before its first task of the stage: "none", "block" (this worker's own writes), "grid" (all earlier
  writes of all workers). `late`: the worker arrives at the barrier at once and waits within the stage's first step, after computing its
  addresses (`schedule/prefetch.py` says which steps can). In a Repeat with `messages` tasks pass values to each other. `everywhere`: each
  worker runs the stage's only task for itself and keeps the results on chip, so that small values that all workers read cost no hand-off.
  `live`: the tile axes along which a call has fewer tasks; task numbers are then row-major in the smaller grid.
- A Repeat may end early, and a Choose runs one of its bodies, as a scalar tensor says during the call. All workers read the scalar,
  after a hand-off that follows its write and before one that precedes its next write. After a Repeat that ended early its loop variable
  holds the number of iterations executed; a carried value's `out` is where its `param` would be in that iteration.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from monotile.plan.launch import Launch
from monotile.plan.places import Frozen, Panels, Place, Shared

Handoff = Literal["none", "block", "grid"]


class Dim(Frozen, frozen=True):
    axes: tuple[int, ...]
    extent: int
    tile: int
    stage: int | None
    lead: int = 0


class Prefetch(Frozen, frozen=True):
    """Data that a step prefetches.

    what:     an operand of the method by its name ("left", "right"); "weights": what no launch changes; "all": all that is read from
              memory;
              "large": the part of that which the first-level cache does not keep from one run of a loop to the next; "own": what the
              epilogue of a block of sums reads and writes.
    at:       when the prefetch is issued:
              "stage"   before the stage's first step, and before its hand-off where the step waits for that itself;
              "handoff" between the arrival at the hand-off and the wait;
              "task"    while the worker's previous task stores its results;
              "block"   while blocks of rows are multiplied with a panel, for the next panel: one cache line for each `distance` values of
              k;
              "loop"    at the beginning of `distance` iterations of a thread's loop, for all of them;
              "use"     where it is used, in the method's own pipeline;
              "ring"    by the supplier, into the last-level cache, in its turn among the weights that it loads.
    distance: how far ahead: chunks of an operand, or iterations of a loop; or as "block" says.
    cache:    "evict_first": not read again before other weights have passed through the last-level cache.
    """

    what: str
    at: Literal["stage", "handoff", "task", "block", "loop", "use", "ring"]
    distance: int = 1
    cache: Literal["normal", "evict_first"] = "normal"

    def describe(self) -> str:
        """In a few words."""
        far = f" x{self.distance}" if self.distance > 1 else ""
        text = f"{self.what} prefetched{far} at {self.at}" if self.at != "use" else self.what
        return text + (" evicted first" if self.cache == "evict_first" else "")


class Method:
    """How a step computes its anchor over one task's region. Each kernel family has its own subclasses (`kernels/*/method.py`), Frozen as
    well. The Plan, its checks and its passes use only the properties declared here.

    light: leaves most registers of a thread to a loop's pinned weights.
    reads_shared: its operands may be in on-chip memory, where messages arrive.
    sends: its results may be sent as messages.
    has_lead: its dims may have a lead.
    has_followers: the computes after the anchor are an element-wise epilogue.
    pins: its weights may be kept on chip through a loop (`Family.pinnable`).
    names: its fields that hold names of the step's computes.
    copies: a copy that computes nothing, whose tasks may be made finer (`Family.finer`).
    """

    __slots__ = ()
    light: ClassVar[bool] = False
    reads_shared: ClassVar[bool] = True
    sends: ClassVar[bool] = True
    has_lead: ClassVar[bool] = False
    copies: ClassVar[bool] = False
    has_followers: ClassVar[bool] = True
    pins: ClassVar[bool] = False
    names: ClassVar[tuple[str, ...]] = ()

    @property
    def anchor(self) -> int:
        """The position of the anchor among the step's computes. Those before it are not stored, except one-per-row values."""
        return 0

    @property
    def slot_bytes(self) -> int:
        """Bytes that a slot of the worker's ring holds of the step's streamed weights; 0 where it streams none."""
        return 0

    @property
    def slots_at_once(self) -> int:
        """Slots that the step's warps wait for before they free any."""
        return 0

    @property
    def teams(self) -> int:
        """How many tasks a worker runs at a time."""
        return 1

    @property
    def own_axes(self) -> tuple[int, ...]:
        """The stage's tile axes that cut only the written positions and no axis of the anchor: each task walks all of the anchor's axes
        and computes the part of its own positions."""
        return ()

    @property
    def prefetches(self) -> tuple[Prefetch, ...]:
        """The step's prefetches."""
        return ()

    def with_prefetch(self, more: "tuple[Prefetch, ...]") -> "Method":
        """The method with `more` prefetches."""
        raise NotImplementedError

    def thread_vectors(self, elements: int) -> int:
        """How many vectors the `elements` of a task are if threads take them one after the other, starting at the step's first thread; 0
        where threads share them in another way."""
        return 0

    def ahead(self, at: str, what: str | None = None) -> int:
        """The largest distance of prefetches at that point, of `what` if given; 0 where there are none."""
        found = [p.distance for p in self.prefetches if p.at == at and what in (None, p.what)]
        return max(found, default=0)

    @property
    def reads_first(self) -> bool:
        """Whether it reads what is no weight when its stage begins."""
        return any(p.at == "stage" and p.what in ("all", "large") for p in self.prefetches)

    def describe(self) -> str:
        """In a few words, for the printed Plan."""
        raise NotImplementedError


Methods = Mapping[str, type[Method]]  # by the tag in JSON


class Bound(Frozen, frozen=True):
    """Bounds of a step's walk along an axis, or reduction axis, of its anchor: from the value of the tensor `first` on and before that
    of `last` ("": from 0, to the extent). They are scalars, or have one element for each run of so many points of the anchor's axes
    `at`; each task is within one run. All workers read them, after a hand-off that follows their write. known: every worker has
    them (`places.held_by_all`), so they need no hand-off of the grid."""

    axis: str
    first: str
    last: str
    known: bool = False
    at: tuple[tuple[str, int], ...] = ()


class Step(Frozen, frozen=True):
    """bounds: limits of its walk; elements beyond them are undefined. Along a reduction axis the limits are exact; else the step may
    compute more.
    scratch: byte offset in the worker's on-chip memory of the `scratch_bytes` that the step's method may use for itself (rings of operands,
    partial results), free before and after the step.
    first_thread: the thread of the worker that takes the step's first vector; the threads after it take the next ones."""

    computes: tuple[str, ...]
    dims: tuple[Dim, ...]
    method: Method
    barrier: bool = False
    scratch: int = 0
    scratch_bytes: int = 0
    first_thread: int = 0
    bounds: tuple[Bound, ...] = ()

    @property
    def anchor(self) -> int:
        """The number of the anchor among `computes`."""
        return self.method.anchor


class LiveTasks(Frozen, frozen=True):
    """A stage has fewer tasks in a call along the tile axis `axis`: those that cover the first `size` * `inner` positions, `tile` each.
    size: a scalar that is a launch argument (`SizeTensor`), or that is computed before the stage begins, which then is not late."""

    axis: int
    size: str
    inner: int
    tile: int


class Stage(Frozen, frozen=True, tag="stage"):
    name: str
    grid: tuple[int, ...]
    steps: tuple[Step, ...]
    handoff: Handoff
    first: int
    late: bool = False
    everywhere: bool = False
    live: tuple[LiveTasks, ...] = ()


class Resident(Frozen, frozen=True):
    """A part of a weight that a worker's task of a stage reads in each iteration of a Repeat, pinned on chip through it.

    compute: the anchor of a Reduce step of `stage`. load: which of the distinct Loads of its body, in order.
    Copied before the first iteration, in the order of use: [dims of the step that the Load depends on, reduction axes flattened],
    row-major, at `offset` in the worker's on-chip memory. The stage has at most one task a worker.
    held: threads load the operands that they use in every iteration from there into registers, if each finishes all its outputs in one
    round. vector: elements that a thread copies at once. Where no worker has tasks of two stages, their pinned weights may share bytes;
    then threads hold them in the same registers if they have equally many vectors of each.
    """

    stage: str
    compute: str
    load: int
    offset: int
    nbytes: int
    held: bool = False
    vector: int = 1

    @property
    def place(self) -> tuple[int, int]:
        """Its bytes on chip: first byte, size."""
        return self.offset, self.nbytes


class Message(Frozen, frozen=True):
    """A tensor that tasks of a Repeat send to each other as tagged values, without a grid barrier.

    tensor: computed by a stage of the body. offset: bytes into the message memory, where each iteration has 8 bytes for each element:
    the value's bits, then the tag, which is different in each call (and each time that the Repeat is entered).
    """

    tensor: str
    offset: int


class Receive(Frozen, frozen=True):
    """The part of a message that each task of `stage` reads. The task waits for it and copies it on chip to `place` before its first step
    that reads a message.

    tensor: the name under which it is read: the message's own, or that of the value carried into the next iteration. The latter is the
    message of the iteration before; in iteration 0 it is read from its place in memory.
    vector: values of one access (`plan.messages.receive_vector`).
    """

    stage: str
    tensor: str
    message: str
    place: Shared
    vector: int = 1


class Repeat(Frozen, frozen=True, tag="repeat"):
    """A Loop of the Program: `extent` iterations, or fewer.

    With messages, values pass between tasks of its stages by these alone: between stages and iterations there are barriers of the block
    only, and no stage has more tasks than there are workers. Or only some values do: then stages wait for grid barriers too, at least once
    an iteration, and only a stage that receives no message has to come after one.
    count: a scalar int64 tensor, the most iterations. predicate: the scalar bool carry `param` that is read before each iteration: the loop
    ends where it is false. All workers read it, and each reads the same.
    handoff: what a worker waits for before the first iteration. again: with a predicate, before it reads that for each later iteration.
    """

    axis: str
    extent: int
    body: "tuple[PlanNode, ...]"
    resident: tuple[Resident, ...] = ()
    messages: tuple[Message, ...] = ()
    receives: tuple[Receive, ...] = ()
    handoff: Handoff = "none"
    count: str = ""
    predicate: str = ""
    again: Handoff = "none"

    @property
    def only_messages(self) -> bool:
        """Whether its workers wait for messages only."""
        return bool(self.messages) and all(
            isinstance(n, Stage) and n.handoff == "block" for n in self.body
        )

    @property
    def ends_early(self) -> bool:
        """Whether the number of iterations is known only during the call."""
        return bool(self.count or self.predicate)


class Choose(Frozen, frozen=True, tag="choose"):
    """Runs one of `bodies`: the one whose number the scalar `index` holds (for a bool, the second if true). All workers read it, and
    each reads the same. handoff: what a worker waits for before it reads it."""

    index: str
    bodies: "tuple[tuple[PlanNode, ...], ...]"
    handoff: Handoff = "none"


PlanNode = Stage | Repeat | Choose
Body = tuple[PlanNode, ...]


class Plan(Frozen, frozen=True):
    """inputs, outputs: tensor names; weights: part names. The launch's pointers are these three in order, then copies of weights
    (`panels`).

    places: of every tensor of the Program. Where there are several, all are written and the first is read (stages other than the
    producer read the first that is not Shared).
    """

    target: str
    launch: Launch
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...]
    places: dict[str, tuple[Place, ...]]
    body: tuple[PlanNode, ...]
    panels: tuple[Panels, ...] = ()

    @property
    def pointers(self) -> int:
        """The number of the launch's pointers, without those that a target adds."""
        given = len(self.inputs) + len(self.outputs) + len(self.weights)
        return given + sum(len(p.parts) for p in self.panels)

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @staticmethod
    def from_json(text: str | bytes, methods: Methods) -> "Plan":
        """methods: the allowed Methods of its steps (`kernels.registry.METHODS`). Raises msgspec.ValidationError."""
        return msgspec.json.decode(text, type=Plan, dec_hook=decoder(methods))


def decoder(methods: Methods) -> Callable[[type, Any], Any]:
    """Decodes the Method of a step for msgspec, by its tag."""

    def decode(kind: type, value: Any) -> Any:
        if kind is not Method:
            raise NotImplementedError(kind)
        found = methods.get(value["type"])
        if found is None:
            raise ValueError(f"no kernel family has a method {value['type']!r}")
        return msgspec.convert(value, found, dec_hook=decode)

    return decode
