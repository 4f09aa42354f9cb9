"""Addresses and strides of a stage's loads, and which of them are packs of neighbours."""

from collections.abc import Generator, Mapping, Sequence, Set
from contextlib import contextmanager

from monotile.analysis.affine import affine
from monotile.codegen.address import is_pack, others, readable
from monotile.codegen.base import plus
from monotile.codegen.spelling import bare
from monotile.codegen.stages import StageEmitter
from monotile.ir.expr import Axis, Expr, Load, Tensor, add, idx, loads, substitute
from monotile.plan.places import ON_CHIP, Place


class PlacedEmitter(StageEmitter):
    """Looks up tensors' places in the Plan. clamped: whether indices may be out of bounds where the element is not used; they are
    clamped to the tensor."""

    clamped = False

    def element(self, e: Load) -> tuple[str, str]:
        place = readable(self.plan.places[e.tensor.name], own=e.tensor.name in self._own)
        return self.read_at(e.tensor, e.index, place)

    def read_at(
        self, tensor: Tensor, index: Sequence[Expr], place: Place, width: int = 1
    ) -> tuple[str, str]:
        """Base pointer and offset of `width` elements to be loaded."""
        pointer, offset = self.address(tensor, index, place)
        if self.clamped and not isinstance(place, ON_CHIP) and tensor.name not in self.sizes:
            shape = tensor.shape[self.tables.get(tensor.name, 0) :]
            last = self.layout(tensor, place).offset([idx(n - 1) for n in shape])
            limit = self.total(affine(add(last.expr, idx(1 - width))))
            offset = f"mt_max_idx(mt_min_idx({bare(offset)}, {bare(limit)}), 0)"
        return pointer, offset

    @contextmanager
    def reading_clamped(self, clamped: bool) -> Generator[None]:
        """Inside, loads are `clamped`."""
        self.clamped = clamped
        yield
        self.clamped = False

    def computed(self, tensor: Tensor) -> bool:
        """Whether the current stage computes `tensor`."""
        return tensor.name in self._own

    def always_there(self, tensor: Tensor) -> bool:
        """Whether the first element of `tensor` can be loaded at any time, whatever the sizes of the call."""
        return 0 not in tensor.shape and tensor.name not in self.sizes | self.watched

    def on_chip(self, tensor: Tensor) -> bool:
        """Whether the current stage reads `tensor` from on-chip memory."""
        place = readable(self.plan.places[tensor.name], own=tensor.name in self._own)
        return isinstance(place, ON_CHIP)

    def address_of(self, e: Load, point: Mapping[str, Expr], *, summed: bool = False) -> str:
        """Text of the address of the element that `e` loads, in the place from which other stages' results are read. summed: as one sum
        from the base, in index arithmetic, not term by term in pointer arithmetic."""
        place = readable(self.plan.places[e.tensor.name], own=e.tensor.name in self._own)
        index = [substitute(i, dict(point)) for i in e.index]
        pointer, offset = self.address(e.tensor, index, place)
        return f"{pointer} + ({bare(offset)})" if summed else plus(pointer, offset)

    def steps(
        self, e: Load, point: Mapping[str, Expr], along: Sequence[Axis]
    ) -> tuple[int, ...] | None:
        """Elements from one value of each axis `along` to the next, where they are constant."""
        place = readable(self.plan.places[e.tensor.name], own=e.tensor.name in self._own)
        index = [substitute(i, dict(point)) for i in e.index]
        return self.strides(e.tensor, index, place, along)

    def strides(
        self, tensor: Tensor, index: Sequence[Expr], place: Place, along: Sequence[Axis]
    ) -> tuple[int, ...] | None:
        """The same for the element of `tensor` at `index` in `place`."""
        table = self.tables.get(tensor.name, 0)
        names = frozenset(a.name for a in along)
        if any(loads(i) for i in index) or any(self.variables(i) & names for i in index[:table]):
            return None
        offset = self.layout(tensor, place).offset(index[table:])
        if any(self.variables(x) & names for x, _ in offset.terms if x not in along):
            return None
        return tuple(offset.coefficient(a) for a in along)

    def first_of(
        self,
        tensor: Tensor,
        index: Sequence[Expr],
        place: Place,
        lane: Axis,
        inside: Set[str],
        *,
        aligned: bool = True,
    ) -> tuple[Expr, ...] | None:
        """The index of lane 0, if the lanes' elements are contiguous in memory and, if wanted, a pack of them is aligned.

        inside: variables that may differ from lane to lane.
        """
        table = self.tables.get(tensor.name, 0)
        safe = [
            self.position(i, extent, tensor) for i, extent in zip(index, tensor.shape, strict=True)
        ]
        if any(self.variables(i) & inside for i in safe[:table]):
            return None
        offset = self.layout(tensor, place).offset(safe[table:])
        if self.variables(others(offset, lane).expr) & inside:
            return None
        if not is_pack(offset, lane, tensor.dtype.itemsize, place if aligned else None):
            return None
        return tuple(substitute(i, {lane.name: idx(0)}) for i in safe)

    @contextmanager
    def zeros_unless(self, pack: str, kind: str) -> Generator[str]:
        """Defines `pack`, of type `kind`: the words that this names, zeros except for those set meanwhile. Narrower elements would stall
        where they are loaded."""
        words = self.writer.fresh("words")
        self.writer.write(f"mt::Words<{kind}> {words}{{}};")
        yield words
        self.writer.write(f"const auto {pack} = {words}.whole();")
