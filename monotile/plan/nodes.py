"""The Plan: a Program in time and space. Frozen, printable, JSON both ways; the emitters add nothing to it.

Vocabulary (Rammer's rTask, Welder's tile graph)
- A worker is a resident thread block (CUDA) or a thread (CPU). All workers run the Plan's body together.
- A Stage is cut into tasks: `grid` says how many along each of its tile axes, task numbers are row-major. Task t runs on worker (first + t) % workers; on a
  CPU a worker has neighbours, what its cache has of the stage before. A worker runs its tasks in ascending order.
- A Step is one Compute (the anchor) with the Computes, and answers to questions (`gather.py`), that follow it element by element, held in a
  register (`computes`, in order); what an Attend computes on the way, the product of a MatmulGate, or what a row of HoldRows or MatmulRows has one of, stands before its anchor. A task runs its stage's steps one after the other; `barrier`
  says that the threads of the worker wait for each other before the step.
- A Dim is how a step's task walks some of the anchor's axes, flattened row-major: the task at
  coordinate c along tile axis `stage` covers [c * tile, min(extent, (c + 1) * tile)). With a `lead` that many positions
  are in front of these: the task covers the same plus `lead`, and the first one all in front too. A Dim whose
  `stage` is None is walked whole by every task. A step's dims name each axis of the anchor once.
- `handoff` is what a worker waits for before its first task of the stage: "none", "block" (what this
  worker itself wrote), "grid" (everything that any worker wrote before). `late`: it arrives at once and waits within the
  stage's first step, once that has found its addresses (`schedule/prefetch.py` says which steps can). In a Repeat with
  `messages` tasks hand on values themselves. `everywhere`: each worker runs the stage's only task for itself, and keeps the results
  on chip: what is small and wanted by all costs no hand-off then. `live`: along which tile axes a call has fewer tasks; numbers are then row-major
  in the smaller grid.
- A Repeat may end early, and a Choose runs one of its bodies, as a scalar tensor says in the call. All workers read it, behind a
  hand-off after whoever wrote it and before whoever overwrites it. After a Repeat that ends early its loop variable holds the
  number of iterations that were; a carried value's `out` lies where its `param` would in that iteration.
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
    """Data that a step asks for before it uses it.

    what:     an operand of the method by its name ("left", "right"); "weights": what no launch changes; "all": all that is read from memory;
              "large": of that what the first-level cache does not keep from one turn of a loop to the next; "own": what finishing a block of sums takes and gives.
    at:       when the request goes out:
              "stage"   before the stage's first step, and before its hand-off where that is waited for within the step;
              "handoff" between the arrival at the hand-off and the wait;
              "task"    while the worker's task before this one stores its results;
              "block"   while blocks of rows are multiplied with a panel, of the panel that comes next: a line of the cache for each `distance` values of k;
              "loop"    at the beginning of `distance` iterations of a thread's loop, for all of them;
              "use"     where it is used, in the method's own pipeline.
    distance: how far ahead: chunks of an operand, or iterations of a loop; or as "block" says.
    cache:    "evict_first": nobody asks for it again before the last-level cache has had other weights instead.
    """

    what: str
    at: Literal["stage", "handoff", "task", "block", "loop", "use"]
    distance: int = 1
    cache: Literal["normal", "evict_first"] = "normal"

    def describe(self) -> str:
        """In a few words."""
        far = f" x{self.distance}" if self.distance > 1 else ""
        text = f"{self.what} prefetched{far} at {self.at}" if self.at != "use" else self.what
        return text + (" evicted first" if self.cache == "evict_first" else "")


class Method:
    """How a step computes its anchor over one task's region. Each kernel family has methods of its own (`kernels/*/method.py`), which are
    Frozen as well; what the Plan, its checks and its passes ask of all of them is here.

    light: leaves most registers of a thread to what a loop keeps there.
    reads_shared: its operands may lie in on-chip memory, where messages arrive.
    sends: what it makes may be handed on in messages.
    has_lead: its dims may have a lead.
    has_followers: what stands behind the anchor follows it element by element.
    pins: what it reads of a weight may be kept on chip through a loop (`Family.pinnable`).
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
        """The number of the anchor among the step's computes: those before it are not stored, but for what a row has one of."""
        return 0

    @property
    def slot_bytes(self) -> int:
        """What a slot of the worker's ring holds of the weights that the step streams; 0 where it streams none."""
        return 0

    @property
    def slots_at_once(self) -> int:
        """Slots that the step's warps wait for before they free any."""
        return 0

    @property
    def teams(self) -> int:
        """How many tasks a worker does at a time."""
        return 1

    @property
    def own_axes(self) -> tuple[int, ...]:
        """The stage's tile axes that cut no axis of the anchor, but the positions that it writes: each task walks all of the anchor's axes
        and does what falls into its part."""
        return ()

    @property
    def prefetches(self) -> tuple[Prefetch, ...]:
        """What the step asks for ahead."""
        return ()

    def with_prefetch(self, more: "tuple[Prefetch, ...]") -> "Method":
        """The method, asking for `more` as well."""
        raise NotImplementedError

    def thread_vectors(self, elements: int) -> int:
        """How many vectors the `elements` of a task are that threads take one after the other, from the step's first thread on; 0 where
        threads share them in another way."""
        return 0

    def ahead(self, at: str, what: str | None = None) -> int:
        """How far ahead it asks at that point, for `what` if given; 0 where it does not."""
        found = [p.distance for p in self.prefetches if p.at == at and what in (None, p.what)]
        return max(found, default=0)

    def describe(self) -> str:
        """In a few words, for the printed Plan."""
        raise NotImplementedError


Methods = Mapping[str, type[Method]]  # by the tag that JSON gives them


class Bound(Frozen, frozen=True):
    """A step's walk along an axis, or reduce axis, of its anchor: from the value of the tensor `first` on and before that of `last`
    ("": from 0, to the extent). They are scalars, or have an element for each run of so many points of the axes `at` of the anchor: each task lies within one.
    All workers read them, behind a hand-off after whoever wrote them. known: the launch has them by value: they wait for nobody."""

    axis: str
    first: str
    last: str
    known: bool = False
    at: tuple[tuple[str, int], ...] = ()


class Step(Frozen, frozen=True):
    """bounds: what its walk leaves out, which is undefined. Along a reduce axis exactly that; else it may compute more.
    scratch: the byte offset in the worker's on-chip memory from which the step's method may use
    `scratch_bytes` for itself (rings of operands, partial results), free before and after the step.
    first_thread: which thread of the worker takes the step's first vector; the ones after it the next."""

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
    """In a call a stage has fewer tasks along the tile axis `axis`: those that cover the first `size` * `inner` positions, `tile` each. size: a
    scalar that the launch has by value (`SizeTensor`), or that is there before the stage begins, which then is not late."""

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
    """The part of a weight that a worker's task of a stage reads in each iteration of a Repeat, kept on chip through it.

    compute: the anchor of a Reduce step of `stage`. load: which of the distinct Loads of its body, in order.
    Copied before the first iteration, in the order of use: [dims of the step that the Load depends on, reduce
    axes flattened], row-major, at `offset` in the worker's on-chip memory. The stage has one task a worker at most.
    held: from there each thread takes what it multiplies with in every iteration into registers, if it finishes all its
    outputs in one round. vector: elements that a thread copies at once. Where no worker has tasks of two stages, what these keep may lie in the
    same place; in the same bytes, threads hold it in the same registers if they have equally many vectors of each.
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
        """Its bytes on chip: the first, and how many."""
        return self.offset, self.nbytes


class Message(Frozen, frozen=True):
    """A tensor that tasks of a Repeat hand to each other by tagged values, with no barrier of the grid.

    tensor: made by a stage of the body. offset: bytes into the message memory, where each iteration has 8 bytes for each
    element: the value's bits, then the tag, which is another in each call (and each time that the Repeat is entered).
    """

    tensor: str
    offset: int


class Receive(Frozen, frozen=True):
    """What each task of `stage` reads of a message, waited for and brought on chip to `place` before the first of its steps that reads a
    message.

    tensor: under which name it is read: the message's own, or that of the value carried into the next iteration. The
    latter is the message of the iteration before; in iteration 0 it is read where it lies.
    vector: values of one access (`plan.messages.receive_vector`).
    """

    stage: str
    tensor: str
    message: str
    place: Shared
    vector: int = 1


class Repeat(Frozen, frozen=True, tag="repeat"):
    """A Loop of the Program: `extent` iterations, or fewer.

    With messages, its stages hand on what other tasks read by these alone: between stages and iterations there are
    barriers of the block only, and no stage has more tasks than there are workers. Or some of it: then stages wait for barriers of
    the grid too, at least once an iteration, and only what receives no message has to be behind one.
    count: a scalar int64 tensor: there are no more iterations than its value. predicate: the scalar bool carry `param` that is looked
    at before each iteration: the loop ends where it is false. All workers look, and each finds the same.
    handoff: what a worker waits for before the first iteration. again: with a predicate, before it looks at that for each other one.
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
        """Whether its workers wait for nothing but messages."""
        return bool(self.messages) and all(
            isinstance(n, Stage) and n.handoff == "block" for n in self.body
        )

    @property
    def ends_early(self) -> bool:
        """Whether the number of iterations is known in the call only."""
        return bool(self.count or self.predicate)


class Choose(Frozen, frozen=True, tag="choose"):
    """Runs one of `bodies`: the one whose number the scalar `index` holds (of a bool, the second where it is true). All workers look at it,
    and each finds the same. handoff: what a worker waits for before it looks."""

    index: str
    bodies: "tuple[tuple[PlanNode, ...], ...]"
    handoff: Handoff = "none"


PlanNode = Stage | Repeat | Choose
Body = tuple[PlanNode, ...]


class Plan(Frozen, frozen=True):
    """inputs, outputs: tensor names; weights: part names. The launch's pointers are these three in order, then copies of weights (`panels`).

    places: of every tensor of the Program; where there are several, all are written and the first is read
    (by other stages than the one that computes it: the first that is not Shared).
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
        """How many the launch has, but for those that a target adds."""
        given = len(self.inputs) + len(self.outputs) + len(self.weights)
        return given + sum(len(p.parts) for p in self.panels)

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @staticmethod
    def from_json(text: str | bytes, methods: Methods) -> "Plan":
        """methods: those that its steps may have (`kernels.registry.METHODS`). Raises msgspec.ValidationError."""
        return msgspec.json.decode(text, type=Plan, dec_hook=decoder(methods))


def decoder(methods: Methods) -> Callable[[type, Any], Any]:
    """What msgspec asks for the Method of a step, whose type its tag tells."""

    def decode(kind: type, value: Any) -> Any:
        if kind is not Method:
            raise NotImplementedError(kind)
        found = methods.get(value["type"])
        if found is None:
            raise ValueError(f"no kernel family has a method {value['type']!r}")
        return msgspec.convert(value, found, dec_hook=decode)

    return decode
