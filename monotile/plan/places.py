"""The places of tensors in memory. The Program's inputs, weights and outputs have Pointers."""

import math

import msgspec


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the Plan's nodes."""


class Pointer(Frozen, frozen=True, tag="pointer"):
    """Entry `slot` of the launch's pointers; a weight with a table has its parts in consecutive slots."""

    slot: int


class Value(Pointer, frozen=True, tag="value"):
    """A scalar input passed by value in entry `slot` of the launch's pointers: a size."""


class Workspace(Frozen, frozen=True, tag="workspace"):
    """Bytes into the call's workspace (global memory)."""

    offset: int


class Strip(Frozen, frozen=True, tag="strip"):
    """Columns of a matrix in the workspace that begins at byte `offset`: a tensor that is a part of a concatenation along the last
    dimension, written straight into it. The matrix's rows have `pitch` elements of `size` bytes; the tensor has `width` of these from
    `first` on."""

    offset: int
    first: int
    width: int
    pitch: int
    size: int


class BoxDim(Frozen, frozen=True):
    """One dimension of the part of a tensor that a task holds: it begins at coordinate * tile of the stage's tile axis `stage` (at 0 for
    None) and is `extent` long."""

    stage: int | None
    tile: int
    extent: int


class Shared(Frozen, frozen=True, tag="shared"):
    """Bytes into the worker's on-chip memory; only the part `box` of the tensor, row-major with `pitch` elements from row to row along
    the second last dimension."""

    offset: int
    box: tuple[BoxDim, ...]
    pitch: int

    @property
    def elements(self) -> int:
        """The elements that it occupies, including padding between rows."""
        return math.prod(b.extent for b in self.box[:-1]) * self.pitch


class Replica(Frozen, frozen=True, tag="replica"):
    """Bytes into every worker's on-chip memory: each worker has its own copy of the whole tensor, computed by a stage that runs
    `everywhere` and read by later stages after a barrier of the block."""

    offset: int


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


class Final(Frozen, frozen=True, tag="final"):
    """The final value of a carry of a loop that may end early: `of` in the first iteration that was not executed."""

    of: Rotate


class Panels(Frozen, frozen=True):
    """A packed copy of a weight, in the order in which products on a CPU read their right operand; the caller's tensor stays as it is. Made
    before a launch, and again when the weight has changed. Entries of the launch's pointers from `slot` on, one for each of the weight's
    parts.

    anchors: the reductions that read it. batches, columns, depth: extents and strides within a part, in elements, of the matrices'
    batch, the columns and k, row-major each; `first` is the first element. A matrix is a panel for each `block` columns, zero-padded
    beyond the last. A panel consists of pieces of `run` words along k, outermost, zero-padded beyond the last k; then groups of `group`
    columns; words; columns; and the `word` neighbours along k that are one word.
    """

    weight: str
    anchors: tuple[str, ...]
    first: int
    batches: tuple[tuple[int, int], ...]
    columns: tuple[tuple[int, int], ...]
    depth: tuple[tuple[int, int], ...]
    block: int
    group: int
    run: int
    word: int
    slot: int = 0
    parts: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Matrices, columns, and values of k, including padding."""
        matrices, columns, depth = (
            math.prod(n for n, _ in x) for x in (self.batches, self.columns, self.depth)
        )
        step = self.run * self.word
        return matrices, -(-columns // self.block) * self.block, -(-depth // step) * step

    @property
    def elements(self) -> int:
        """Elements of the copy of one part."""
        return math.prod(self.shape)

    @property
    def order(self) -> "Panels":
        """The order alone, independent of readers and pointers."""
        return msgspec.structs.replace(self, anchors=(), slot=0, parts=())


def replicas_in(p: "Place") -> "tuple[Replica, ...]":
    """Places of a tensor, within `p`, that every worker has for itself."""
    match p:
        case Replica():
            return (p,)
        case Slice(of) | Final(of):
            return replicas_in(of)
        case Rotate(_, _, _, places, first, last):
            ends = (q for q in (*places, first, last) if q is not None)
            return tuple(r for q in ends for r in replicas_in(q))
        case _:
            return ()


def is_global(p: "Place") -> bool:
    """Whether a tensor at `p` is in global memory, whatever the iteration."""
    match p:
        case Value() | Shared() | Replica() | Register():
            return False
        case Slice(of) | Final(of):
            return is_global(of)
        case Rotate(_, _, _, places, first, last):
            return all(is_global(q) for q in (*places, first, last) if q is not None)
        case _:
            return True


def held_by_all(places: "tuple[Place, ...]") -> bool:
    """Whether every worker has a tensor at `places` without a hand-off of the grid: a launch argument, or its own copy on chip."""

    def held(p: "Place | None") -> bool:
        match p:
            case None | Value() | Replica():
                return True
            case Rotate(_, _, _, both, first, last):
                return all(map(held, (*both, first, last)))
            case Final(of):
                return held(of)
            case _:
                return False

    return all(map(held, places))


Place = Pointer | Value | Workspace | Strip | Shared | Replica | Register | Slice | Rotate | Final
ON_CHIP = (Shared, Replica)
