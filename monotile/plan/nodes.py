"""The Plan: a Program in time and space. Frozen, printable, JSON both ways; the emitters add nothing to it.

Vocabulary (Rammer's rTask, Welder's tile graph)
- A worker is a resident thread block (CUDA) or a thread (CPU). All workers run the Plan's body together.
- A Stage is cut into tasks: `grid` says how many along each of its tile axes, task numbers are
  row-major. Task t runs on worker (first + t) % workers; a worker runs its tasks in ascending order.
- A Step is one Compute (the anchor) with the Computes, and answers to questions (`gather.py`), that follow it element by element, held in a
  register (`computes`, in order); what an Attend or HoldRows computes on the way stands before its anchor. A task runs its stage's steps one after the other; `barrier`
  says that the threads of the worker wait for each other before the step.
- A Dim is how a step's task walks some of the anchor's axes, flattened row-major: the task at
  coordinate c along tile axis `stage` covers [c * tile, min(extent, (c + 1) * tile)). With a `lead` that many positions
  are in front of these: the task covers the same plus `lead`, and the first one all in front too. A Dim whose
  `stage` is None is walked whole by every task. A step's dims name each axis of the anchor once.
- `handoff` is what a worker waits for before its first task of the stage: "none", "block" (what this
  worker itself wrote), "grid" (everything that any worker wrote before). `late`: it arrives at once and waits within the
  stage's first step, once that has found its addresses (`schedule/prefetch/late.py` says which steps can). In a Repeat with
  `messages` tasks hand on values themselves.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

Handoff = Literal["none", "block", "grid"]


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the Plan's nodes."""


class Dim(Frozen, frozen=True):
    axes: tuple[int, ...]
    extent: int
    tile: int
    stage: int | None
    lead: int = 0


# How a step computes its anchor over one task's region.


class Map(Frozen, frozen=True, tag="map"):
    """Independent elements; a thread takes `vector` neighbours along the last axis at once.

    early: a thread asks for what its element reads from memory before the stage's first step, not when its turn comes.
    together: turns of a thread whose loads are on their way at the same time.
    """

    vector: int = 1
    early: bool = False
    together: int = 1


class Turn(Frozen, frozen=True, tag="turn"):
    """A copy in another order of axes. A thread reads `vector` neighbours of the last axis with all that lies behind them, which
    are neighbours in memory, and writes a vector for each position of the dim `behind`, which every task walks whole."""

    vector: int
    behind: int


class Interleave(Frozen, frozen=True, tag="interleave"):
    """Elements whose last axis is short, and is not where neighbours lie in what is read: a thread takes `vector` neighbours of the axis
    before it, where these do, with all of the last, and writes them as one run."""

    vector: int


class Serial(Frozen, frozen=True, tag="serial"):
    """A Scatter whose writes may collide. Threads share the dims at positions `parallel`, along which they never
    do; each walks the other dims in row-major order."""

    parallel: tuple[int, ...] = ()


class Reduce(Frozen, frozen=True, tag="reduce"):
    """`lanes` threads share one output and combine their parts in a tree (1, 2, 4, ... up to the block).

    The reduce axes are flattened in the order `order`; a lane takes `vector` neighbours along the last at once. Or a thread has
    `outputs` neighbours along the last axis of the outputs, which lie side by side in what it reads; then `vector` is 1.
    Then either it may have them at `windows` neighbours along the axis before as well: the windows of these share what the last reduce
    axis in the order walks. Or neighbouring threads have neighbouring outputs, and the `lanes` that share these are a row of such threads apart.
    early: a thread asks for the weights that it multiplies with before the stage's first step, and before its hand-off where it waits late.
    """

    lanes: int
    vector: int = 1
    order: tuple[int, ...] = ()
    outputs: int = 1
    windows: int = 1
    early: bool = False

    @property
    def by_columns(self) -> bool:
        """Whether lanes share outputs that lie side by side."""
        return self.outputs > 1 and self.lanes > 1


class Operand(Frozen, frozen=True):
    """How a contraction reads one side.

    major:  the direction in which neighbours in memory lie: along "k", along "mn" (m of the left side, n of
            the right), or "none".
    vector: elements one copy moves.
    copy:   "direct" (read in place), "async" (asynchronous copies of vector * itemsize bytes into shared
            memory), "element" (evaluated one by one into shared memory).
    ahead:  of a stage that waits late: chunks asked for before its hand-off. No stage makes what they are copied from.
    once:   nobody asks for it again before the last-level cache has had other weights instead: it leaves that first.
    """

    major: Literal["k", "mn", "none"]
    vector: int
    copy: Literal["direct", "async", "element"]
    ahead: int = 0
    once: bool = False


class Contract(Frozen, frozen=True, tag="contract"):
    """A sum of products as a tiled matrix product; `m` and `n` are positions in the step's dims.

    Dims other than m and n are batches, walked one by one. `k` holds the reduce axes in the order in
    which they are flattened. A task's region is walked in blocks of block_m x block_n; inside, every
    warp owns accumulators for block_m / warps_m x block_n / warps_n, the K dimension is cut in chunks of
    block_k, and chunk c belongs to the warps of slice c % slices, each slice with its own ring
    of `depth` chunks in shared memory; the slices are added up at the end.
    runs: a block's columns are so many runs side by side, each with a part of its own of what the left side has for a value of
    the axes before the last of k: the channels of a group. What they read together is copied as one line.
    teams: the warps are so many teams, with a ring each, which take a block each. It is the only step of its stage then, of whose
    tasks a worker has several: the teams take these in turn, and one's products go on while another finishes its sums.
    following: how many chunks of the worker's next task are asked for when this one's products are done, before its sums are stored;
    these stay clear of so many stages of the ring. It is the only step of its stage then.
    On the CPU a block is one register tile, and slices, warps and depth are 1.
    """

    m: int
    n: int
    k: tuple[int, ...]
    block_m: int
    block_n: int
    block_k: int
    instruction: Literal["wgmma", "mma.m16n8k16", "fma", "dot", "outer"]
    left: Operand
    right: Operand
    warps_m: int = 1
    warps_n: int = 1
    slices: int = 1
    depth: int = 1
    runs: int = 1
    teams: int = 1
    following: int = 0


class Attend(Frozen, frozen=True, tag="attend"):
    """A softmax-weighted sum, streamed along the keys (FlashAttention): `analysis.attention` says what its computes are.

    The anchor is the result, number `result` of the step's computes; those before it are never stored. m, n: positions in
    the step's dims: rows of queries, columns of values; the other dims are batches, walked one by one. A task takes
    blocks of block_m rows. Keys are cut in chunks of `chunk`, which slices of the warps deal among themselves, each with its
    own ring of `depth` chunks of keys and values; what each of them has found is put together at the end. A slice is one
    warp, by wgmma block_m / 16 of them, each with 16 rows.
    """

    result: int
    m: int
    n: int
    block_m: int
    chunk: int
    depth: int
    query: Operand
    key: Operand
    value: Operand
    instruction: Literal["wgmma", "mma.m16n8k16"] = "mma.m16n8k16"

    def slices(self, warps: int) -> int:
        """Of `warps` of a worker."""
        return warps * 16 // self.block_m if self.instruction == "wgmma" else warps


class HoldRows(Frozen, frozen=True, tag="hold_rows"):
    """Rows that are read, reduced and written from registers: `analysis.rowwise` says what its computes are.

    The anchor is the first wide one, number `result` of the step's computes: before it stands what a row has one of. A group
    of `lanes` neighbouring threads has a row, each thread vectors of `vector` neighbours of it, `lanes` vectors apart. In a
    stage that waits late, what no launch changes is asked for before that.
    moments: sums of squared distances from the mean that are found together with the sum, in one pass over the row.
    """

    result: int
    lanes: int
    vector: int
    moments: tuple[str, ...] = ()


Method = Map | Turn | Interleave | Serial | Reduce | Contract | Attend | HoldRows


class Step(Frozen, frozen=True):
    """scratch: the byte offset in the worker's on-chip memory from which the step's method may use
    `scratch_bytes` for itself (rings of operands, partial results), free before and after the step."""

    computes: tuple[str, ...]
    dims: tuple[Dim, ...]
    method: Method
    barrier: bool = False
    scratch: int = 0
    scratch_bytes: int = 0

    @property
    def anchor(self) -> int:
        """The number of the anchor among `computes`."""
        return self.method.result if isinstance(self.method, (Attend, HoldRows)) else 0

    @property
    def teams(self) -> int:
        """How many tasks a worker does at a time."""
        return self.method.teams if isinstance(self.method, Contract) else 1

    @property
    def following(self) -> int:
        """How many chunks of the next task are asked for during one."""
        return self.method.following if isinstance(self.method, Contract) else 0


# Where a tensor lives. A tensor of the program's inputs, weights or outputs has a Pointer.


class Pointer(Frozen, frozen=True, tag="pointer"):
    """Entry `slot` of the launch's pointers; a weight with a table has its parts in consecutive slots."""

    slot: int


class Workspace(Frozen, frozen=True, tag="workspace"):
    """Bytes into the call's workspace (global memory)."""

    offset: int


class BoxDim(Frozen, frozen=True):
    """One dimension of the part of a tensor that a task holds: it begins at coordinate * tile of the
    stage's tile axis `stage` (at 0 for None) and is `extent` long."""

    stage: int | None
    tile: int
    extent: int


class Shared(Frozen, frozen=True, tag="shared"):
    """Bytes into the worker's on-chip memory; only the part `box` of the tensor, row-major with `pitch`
    elements from row to row along the second last dimension."""

    offset: int
    box: tuple[BoxDim, ...]
    pitch: int


class Register(Frozen, frozen=True, tag="register"):
    """Never stored: used only by the step that computes it."""


class Slice(Frozen, frozen=True, tag="slice"):
    """The part of `of` that belongs to the current iteration of the loop over `axis`: of + axis * stride bytes."""

    of: "Place"
    axis: str
    stride: int


class Rotate(Frozen, frozen=True, tag="rotate"):
    """A carried value: `first` in iteration 0 (if given), `last` in the last iteration (if given), else
    places[(iteration + phase) % 2]."""

    axis: str
    extent: int
    phase: int
    places: "tuple[Place, Place]"
    first: "Place | None" = None
    last: "Place | None" = None


Place = Pointer | Workspace | Shared | Register | Slice | Rotate


class Stage(Frozen, frozen=True, tag="stage"):
    name: str
    grid: tuple[int, ...]
    steps: tuple[Step, ...]
    handoff: Handoff
    first: int
    late: bool = False


def each_stage(
    body: "tuple[PlanNode, ...]", change: Callable[[Stage], Stage]
) -> "tuple[PlanNode, ...]":
    """`body` with every stage changed, those in Repeats too."""
    return tuple(
        change(n)
        if isinstance(n, Stage)
        else msgspec.structs.replace(n, body=each_stage(n.body, change))
        for n in body
    )


class Resident(Frozen, frozen=True):
    """The part of a weight that a worker's task of a stage reads in each iteration of a Repeat, kept on chip through it.

    compute: the anchor of a Reduce step of `stage`. load: which of the distinct Loads of its body, in order.
    Copied before the first iteration, in the order of use: [dims of the step that the Load depends on, reduce
    axes flattened], row-major, at `offset` in the worker's on-chip memory. The stage has one task a worker at most.
    held: from there each thread takes what it multiplies with in every iteration into registers, if it finishes all its
    outputs in one round.
    """

    stage: str
    compute: str
    load: int
    offset: int
    nbytes: int
    held: bool = False


class Message(Frozen, frozen=True):
    """A tensor that tasks of a Repeat hand to each other by tagged values, with no barrier of the grid.

    tensor: made by a stage of the body. offset: bytes into the message memory, where each iteration has 8 bytes for each
    element: the value's bits, then the tag, which is another in each call (and each time that the Repeat is entered).
    """

    tensor: str
    offset: int


class Receive(Frozen, frozen=True):
    """What each task of `stage` reads of a message, waited for and brought on chip to `place` before its first step.

    tensor: under which name it is read: the message's own, or that of the value carried into the next iteration. The
    latter is the message of the iteration before; in iteration 0 it is read where it lies.
    """

    stage: str
    tensor: str
    message: str
    place: Shared


class Repeat(Frozen, frozen=True, tag="repeat"):
    """A Loop of the Program.

    With messages, its stages hand on what other tasks read by these alone: between stages and iterations there are
    barriers of the block only, and no stage has more tasks than there are workers. `handoff` is what a worker waits for
    before the first iteration.
    """

    axis: str
    extent: int
    body: "tuple[PlanNode, ...]"
    resident: tuple[Resident, ...] = ()
    messages: tuple[Message, ...] = ()
    receives: tuple[Receive, ...] = ()
    handoff: Handoff = "none"


PlanNode = Stage | Repeat


class Launch(Frozen, frozen=True):
    """workers: grid size. threads: block size. shared_bytes: dynamic on-chip memory of a worker.
    workspace_bytes: global memory a call needs besides its outputs, 256-byte aligned. message_bytes: behind it, for
    messages: zero at first, and no one else's between calls."""

    workers: int
    threads: int
    shared_bytes: int
    workspace_bytes: int
    message_bytes: int = 0


class Plan(Frozen, frozen=True):
    """inputs, outputs: tensor names; weights: part names. The launch's pointers are these three in order.

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

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @staticmethod
    def from_json(text: str) -> "Plan":
        return msgspec.json.decode(text, type=Plan)


def repeats(nodes: tuple[PlanNode, ...]) -> Iterator[Repeat]:
    """Every loop, those inside another after it."""
    for node in nodes:
        if isinstance(node, Repeat):
            yield node
            yield from repeats(node.body)
