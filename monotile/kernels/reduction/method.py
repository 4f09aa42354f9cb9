"""The methods of reductions in a Plan."""

import math
from typing import ClassVar

import msgspec

from monotile.plan.nodes import Method, Prefetch
from monotile.plan.places import Frozen


class AlongTerms(Frozen, frozen=True, tag="terms"):
    """Vectors of a thread run along the terms of one output; their lanes are combined at the end (a horizontal sum).

    flat: one loop runs over all reduce axes, flattened in the order. Otherwise each axis has a loop with a partial sum of its own, and
    vectors run along the last.
    parts: terms per partial sum in the innermost loop; each partial sum is added to the next level. With two levels the longer one comes
    first; () for a single sum, as for all reductions other than sums of floats.
    decoded: for a factor that is stored as codes, how many neighbours share a word, and how many share the other operands of decoding; so
    many terms of it are decoded before any is multiplied. None: no factor is.
    lines: the terms are products of two contiguous lines of elements, which a separate function multiplies (`targets/cpu/device/line.h`).
    """

    flat: bool = True
    parts: tuple[int, ...] = ()
    decoded: tuple[int, int] | None = None
    lines: bool = False

    def describe(self) -> str:
        """Short text for the printed Plan."""
        text = f"vectors along {'the terms' if self.flat else 'the last axis'}"
        text += ", codes decoded first" if self.decoded else ""
        text += ", of two lines" if self.lines else ""
        return f"{text}, partial sums of {' / '.join(map(str, self.parts))}" if self.parts else text


class AlongOutputs(Frozen, frozen=True, tag="outputs"):
    """Vectors of a thread run along `count` neighbouring outputs, whose partial results are contiguous; each reduce axis has a loop.

    part: about how many terms make a partial sum of each output; 0 for single sums, as for all reductions other than sums of floats.
    windows: sums are over windows, and those of several positions are in registers (`targets/cpu/device/window.h`).
    """

    count: int
    part: int = 0
    windows: bool = False

    def describe(self) -> str:
        """Short text for the printed Plan."""
        text = f"vectors along {self.count} outputs" + (
            ", windows in registers" if self.windows else ""
        )
        return f"{text}, partial sums of {self.part}" if self.part else text


Simd = AlongTerms | AlongOutputs


class Reduce(Method, Frozen, frozen=True, tag="reduce"):
    """`lanes` threads share one output and combine their partial results in a tree (1, 2, 4, ... up to the block).

    The reduce axes are flattened in the order `order`; a lane loads `vector` neighbouring terms along the last at once. Or a thread has
    `outputs` neighbouring outputs along their last axis, whose operands are contiguous; then `vector` is 1. Such a thread may have them at
    `windows` neighbouring positions along the axis before as well, whose windows overlap along the last reduce axis in the order. Or
    neighbouring threads have neighbouring outputs, and the `lanes` that share these are a row of such threads apart.
    together, runs: of lanes along the reduction, a group works on `runs` runs of `together` neighbouring outputs at once.
    unroll: vectors of an output, or rows of a matrix, whose loads a lane has in flight at once. These three are 1 until the Plan is
    otherwise complete.
    exact: `outputs` divides a task's outputs and leaves no thread idle; also set for a single output.
    at_once: for segmented reductions, how many vectors of outputs a thread has at once along each dim of the step; () where their terms
    have checked indices, which allow only one output after the other.
    unrolled: where a thread reduces alone, the unroll factor of the loop over each reduce axis in the order, without the one that windows
    share.
    simd: for a thread that reduces alone on the CPU; None for blocks of threads, and `AlongTerms()` in an unfinished Plan.
    prefetch: at "stage" the weights that a thread multiplies with, into registers.
    """

    light: ClassVar[bool] = True
    pins: ClassVar[bool] = True

    lanes: int
    vector: int = 1
    order: tuple[int, ...] = ()
    outputs: int = 1
    windows: int = 1
    together: int = 1
    runs: int = 1
    unroll: int = 1
    exact: bool = False
    at_once: tuple[int, ...] = ()
    unrolled: tuple[int, ...] = ()
    simd: Simd | None = None
    prefetch: tuple[Prefetch, ...] = ()

    @property
    def prefetches(self) -> tuple[Prefetch, ...]:
        return self.prefetch

    def with_prefetch(self, more: tuple[Prefetch, ...]) -> "Reduce":
        return msgspec.structs.replace(self, prefetch=(*self.prefetch, *more))

    def several(self, at_once: tuple[int, ...], turns: int) -> "Reduce":
        """The same with so many outputs at once, and `turns` terms of each per iteration."""
        return msgspec.structs.replace(self, at_once=at_once, unrolled=(turns,))

    @property
    def by_columns(self) -> bool:
        """Whether several lanes share contiguous outputs (a vector times a row-major matrix)."""
        return self.side_by_side and self.lanes > 1

    @property
    def side_by_side(self) -> bool:
        """Whether a thread has contiguous outputs, or would have with more outputs."""
        return self.outputs > 1 or self.exact

    def thread_vectors(self, elements: int) -> int:
        several = self.side_by_side and not self.by_columns
        each = self.outputs * self.windows * math.prod(self.at_once)
        return -(-elements // each) if several else 0

    def describe(self) -> str:
        if self.by_columns:
            text = f"reduce, {self.outputs} outputs side by side, {self.lanes} lanes"
        elif self.side_by_side:
            text = f"reduce, {self.outputs} outputs side by side"
            text += f" in {self.windows} windows" if self.windows > 1 else ""
            if self.at_once:
                text += f", {' x '.join(map(str, self.at_once))} at once x {self.unrolled[0]} terms"
        elif self.simd is not None:
            text = f"reduce, {self.simd.describe()}"
        else:
            text = f"reduce, {self.lanes} lanes x{self.vector}"
            text += (
                f", {self.runs} x {self.together} outputs at once"
                if self.runs * self.together > 1
                else ""
            )
        return ", ".join((text, *(p.describe() for p in self.prefetch)))


class ReduceMoments(Reduce, frozen=True, tag="reduce_moments"):
    """A sum, and the sum of squared differences from its mean, in one pass, by Chan's formula for partial results.

    The anchor is the sum. squares: name of the other sum; it follows the anchor's epilogue, and its own epilogue follows it.
    """

    has_followers: ClassVar[bool] = False
    names: ClassVar[tuple[str, ...]] = ("squares",)

    squares: str = ""

    def describe(self) -> str:
        return f"{super().describe()}, sum and squares in one pass"
