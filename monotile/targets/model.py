"""Constants of the cost models, fitted to measurements on a machine: one struct for each kernel family.

They are stored in the machine's figures file (`targets/*/figures/`). "Latencies", "of the path" and the like are multiples of figures of
the `Target`: `latency_seconds`, `worker_bandwidth` (the path from the last-level cache into one worker).
"""

from typing import TypeVar

import msgspec

from monotile.errors import InternalError


class _Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Common(_Family, frozen=True):
    """Figures for all steps.

    transcendental:  cost of a transcendental function, or a division, in operations.
    after_plain, after_costly:  operations that one counts for which follows a product's element: a plain one, a
                     transcendental one.
    request:         cost of a warp's memory request, in operations.
    turn:            latencies that a thread waits in each iteration of a map after its first.
    narrow:          exponent: accesses of a part x of the widest reach x ** narrow of the bandwidth.
    chip_speedup:    bandwidth of on-chip memory over that of the path.
    kept:            part of the last-level cache; what is larger is read from memory again.
    block_barrier:   a barrier of one worker, in grid barriers.
    near:            latencies that a step saves which reads only what its task made.
    worth:           part of the time of a simpler schedule that a more complicated one may take at most.
    resident:        part of the last-level cache that a network's weights may fill and still be there in the next call.
    gap:             bytes that a worker could have read while it waits for a line that is far from the one before; 0 where others go on meanwhile.
    """

    transcendental: float
    after_plain: float
    after_costly: float
    request: float
    turn: float
    narrow: float
    chip_speedup: float
    kept: float
    block_barrier: float
    near: float
    worth: float
    resident: float
    gap: float


class RegisterTiles(_Family, frozen=True):
    """Figures for products in register tiles of one thread.

    outer, dot:  the part of the rate of multiply-adds that tiles of outer products and dot products reach.
    dot_rows:    rows up to which the right side is not worth packing into panels.
    gather, together: for reductions, which are no tiles: cost in operations of a gathered element, and of a horizontal sum of a vector's lanes.
    """

    outer: float
    dot: float
    dot_rows: int
    gather: float
    together: float


class TensorCores(_Family, frozen=True):
    """Figures for products by one kind of tensor-core instruction.

    fill:    latencies before the first products.
    step:    latencies that the warps of a slice wait for each other in every chunk of K.
    path:    bandwidth of copies that are issued far ahead, relative to the path's.
    chip:    bandwidth of on-chip memory, written by copies and read by tensor cores, relative to the path's.
    finish:  passes over the results on chip that their epilogue takes.
    hides:   part of narrow copies that goes on behind the products.
    wide:    part of the rate of tensor cores that float32 reaches.
    """

    fill: float
    step: float
    path: float
    chip: float
    finish: float
    hides: float
    wide: float


class Matmul(_Family, frozen=True):
    """Figures for products in tiles of warps.

    groups:          by `wgmma`; None if there is no such instruction.
    warps:           by `mma.sync`.
    shows:           the part of the others that the longest of copies, on-chip memory and products does not hide.
    sums:            passes over the slices' sums on chip.
    rounding:        passes over on-chip memory that a warpgroup's operands of float32 take to be rounded to TF32.
    parts:           latencies in which a warpgroup takes a chunk of float32 apart and adds its sums.
    sparse:          of the speed at which others read on-chip memory, that of products of two of each four values.
    evaluate:        operations that a vector of an evaluated operand takes.
    copy:            operations that an asynchronous copy of less than full width takes.
    again:           latencies that each of a worker's further tasks waits.
    memory_latency:  latencies that a copy from memory takes where all workers ask.
    drained:         latencies for which memory rests between two tasks whose ring does not go on.
    apart:           the path where workers ask for the same at different times, in paths.
    write:           bytes of operands that a byte of unrounded sums costs, whichever worker stores it.
    run_rate:        part of the rate of tensor cores that columns in runs reach.
    alone:           times of a team's products where the other has none.
    scalar_step:     latencies: as `step`, without tensor cores.
    scalar_rate:     part of the rate of multiply-adds that the best tile of a thread reaches.
    scalar_side:     rows and columns of a thread's tile from which on it does.
    aligned, unaligned:  exponents: runs of a part x of the lines that they touch reach x ** this of the path; where lines
                     divide into runs, and where they do not.
    evaluated:       the part of the path that evaluated operands reach.
    """

    groups: TensorCores | None
    warps: TensorCores
    shows: float
    sums: float
    rounding: float
    parts: float
    sparse: float
    evaluate: float
    copy: float
    again: float
    memory_latency: float
    drained: float
    apart: float
    write: float
    run_rate: float
    alone: float
    scalar_step: float
    scalar_rate: float
    scalar_side: float
    aligned: float
    unaligned: float
    evaluated: float


class Reduction(_Family, frozen=True):
    """Figures for outputs that a single thread reduces, in latencies, and for those that lanes share.

    row:      a row of a window.
    vector:   eight neighbours loaded of it.
    narrow:   the part of `vector` that the narrowest load costs.
    term:     a product.
    finish:   an operation that follows an output.
    windows:  windows that a thread has at once at most, or as many as a row has terms.
    rows:     rows of a matrix that a thread asks for at once, vectors of 16 bytes.
    loads:    loads of a lane that hide each other's latency.
    trip, chip_trip:  cycles that lanes wait for a round of loads from memory, and from on-chip memory.
    word:     cycles in which every thread of a block loads a word.
    """

    row: float
    vector: float
    narrow: float
    term: float
    finish: float
    windows: int
    rows: int
    loads: int
    trip: int
    chip_trip: int
    word: int


class Rowwise(_Family, frozen=True):
    """Figures for rows held in registers.

    reduction:  latencies of reducing a sum across the lanes of several warps.
    chain:      other latencies of a further round.
    """

    reduction: float
    chain: float


class Attention(_Family, frozen=True):
    """Figures for softmax-weighted sums.

    softmax:      operations that a score costs, what follows its product left out.
    warp_rate, group_rate:  part of the rate of tensor cores by `mma.sync`, by `wgmma`.
    wide_rate:    the same of float32, whose fragments are multiplied in several passes.
    group_chunk:  latencies that a chunk of keys takes by `wgmma`, however long it is.
    hidden:       part of the shorter of products and powers that goes on behind the other.
    """

    softmax: float
    warp_rate: float
    wide_rate: float
    group_rate: float
    group_chunk: float
    hidden: float


class Prefetch(_Family, frozen=True):
    """How much is asked for ahead.

    chunks:        of a weight, before a product's hand-off: more hold up what polls it.
    weight_bytes:  of weights that all workers ask for before a hand-off.
    turns:         of a map, whose loads are asked for together.
    """

    chunks: int
    weight_bytes: int
    turns: int


class Streaming(_Family, frozen=True):
    """Figures for the warp that fills a worker's ring, and for those that decode what it brings, in latencies.

    gather:  16 bytes by each of its lanes.
    bulk:    a bulk copy, whatever its size.
    slot:    taking a slot and giving it back.
    run:     beginning to decode what each lane of all warps takes at once.
    pair:    decoding two codes of it.
    """

    gather: float
    bulk: float
    slot: float
    run: float
    pair: float


class CostModel(_Family, frozen=True):
    """The figures of each family; None if the target has no kernels of it."""

    common: Common
    register_tiles: RegisterTiles | None
    matmul: Matmul | None
    reduction: Reduction | None
    rowwise: Rowwise | None
    attention: Attention | None
    prefetch: Prefetch | None
    streaming: Streaming | None


_F = TypeVar("_F", bound=_Family)


def fitted(family: _F | None) -> _F:
    """The constants of a family that the target has kernels of."""
    if family is None:
        raise InternalError("the target has no kernels of this family")
    return family
