"""Vector accesses: loads and stores of packs of neighbouring elements, around a short loop over the lanes.

const auto p1 = mt::load<8>(x_2 + o3);          contiguous elements of all lanes
mt::Pack<uint16_t, 8> s4;
for (idx lane = 0; lane < 8; ++lane) { ... }    unrolled by the compiler
mt::store(y_5 + o6, s4);
"""

from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from monotile.analysis.affine import affine, window
from monotile.analysis.guarded import Holds, ends, guarded, is_choice
from monotile.analysis.masked import without_masks
from monotile.analysis.uniform import fold_uniform
from monotile.codegen.address import WIDEST, readable
from monotile.codegen.base import SMALL_FLOATS, STORAGE, plus
from monotile.codegen.placed import PlacedEmitter
from monotile.codegen.spelling import bare
from monotile.codegen.view import View
from monotile.codegen.writer import Block
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    add,
    axes_of,
    idx,
    loads,
    substitute,
)
from monotile.ir.intervals import truth
from monotile.plan.nodes import Step
from monotile.plan.places import ON_CHIP, Place, is_global

LANE, WORD = "lane", "word"
PACK, EACH = "pack", "each"  # names: of a pack, and of one that was loaded element by element


@dataclass(eq=False)
class _Vector:
    """The open loop over lanes. outer: the block around it. stores: the stores after it."""

    lane: Axis
    outer: Block
    inner: Block
    stores: list[str] = field(default_factory=list[str])


def lane_of(width: int) -> Expr:
    """The position inside a vector: 0 where it has one element."""
    return Axis(LANE, width) if width > 1 else idx(0)


def in_window(e: Load, lane: Axis) -> tuple[Load, Expr] | None:
    """`e` with the axis `WORD` for the position in an aligned vector that contains the elements of all lanes, and a lane's position
    there; None if there is no such vector, or it depends on data."""
    moved = [k for k, i in enumerate(e.index) if lane in axes_of(i)]
    if len(moved) != 1:
        return None
    (k,) = moved
    if loads(e.index[k]):
        return None
    found = window(affine(e.index[k]), lane, WIDEST // e.tensor.dtype.itemsize)
    if found is None:
        return None
    there = add(found.first.expr, Axis(WORD, found.width))
    return Load(e.tensor, (*e.index[:k], there, *e.index[k + 1 :])), found.at.expr


def by_lane(e: Expr, lane: Axis) -> bool:
    """Whether the selection in `e` depends on the lane alone, each side for at least one lane, and no address depends on data."""
    if not isinstance(e, Select) or axes_of(e.cond) != frozenset((lane,)) or loads(e.cond):
        return False
    found = {truth(substitute(e.cond, {lane.name: idx(k)})) for k in range(lane.extent)}
    return found == {True, False} and not any(loads(i) for x in loads(e) for i in x.index)


class Piece(NamedTuple):
    """words: the load of the pack's elements. first: the index of its first. at: the position of a lane's element in it."""

    words: Load
    first: tuple[Expr, ...]
    width: int
    at: Expr


Guarded = tuple[Load, Place, tuple[Holds, ...]]  # with the conditions of the load


class PackEmitter(PlacedEmitter):
    """Emits loads and stores of packs while a vector is open.

    view: the current stage's. early: what writes those of the current stage's maps that have prefetched at its beginning. cells: tensors whose
    unaligned vectors are stored so many bytes after the pointer `cell`, to be copied later; then loads beside them need not be aligned
    either. now: loads are issued where they are written.
    """

    view: View
    cells: Mapping[str, int] = MappingProxyType({})
    early: MutableMapping[Step, Callable[[], None]]
    now = False
    _vector: _Vector | None = None

    @contextmanager
    def vector(self, width: int) -> Generator[None]:
        """Inside, the axis `lane_of(width)` runs over the elements of a vector."""
        if width == 1:
            yield
            return
        with self.writer.open("") as outer:
            head = f"for (idx {LANE} = 0; {LANE} < {width}; ++{LANE})"
            with self.writer.open(head, [LANE]) as inner:
                inner.pragma = "#pragma unroll"
                self._vector = _Vector(Axis(LANE, width), outer, inner)
                yield
            for line in self._vector.stores:
                self.writer.write(line)
            self._vector = None

    def root(self, e: Expr) -> str:
        return super().root(e if self._vector is None else fold_uniform(e, self._vector.lane))

    def read(self, e: Load) -> str:
        place = readable(self.plan.places[e.tensor.name], own=e.tensor.name in self._own)
        vector, pack = self._vector, self._pack_of(e)
        if vector is None:
            return super().read(e)
        if pack is None and (first := self._first(e.tensor, e.index, place)) is not None:
            pack = self._pack(e, first, place, vector.lane.extent)
        if pack is None and (found := self.in_pack(e, place)) is not None:
            pack = self._pack(found.words, found.first, place, found.width)
            return self.lane_value(pack, e.dtype, bare(self.value(found.at)))
        return super().read(e) if pack is None else self.lane_value(pack, e.dtype)

    def in_pack(self, e: Load, place: Place) -> Piece | None:
        """The pack that contains the elements of all lanes of `e`, if there is one."""
        vector = self._vector
        assert vector is not None
        found = in_window(e, vector.lane)
        if found is None or self.facts or e.tensor.name in self.watched:
            return None
        words, at = found
        (lane,) = (a for i in words.index for a in axes_of(i) if a.name == WORD)
        first = self.first_of(e.tensor, words.index, place, lane, vector.inner.defines)
        return None if first is None else Piece(words, first, lane.extent, at)

    def _pack_of(self, e: Expr) -> str | None:
        """The name of the loaded value with the open vector's lanes of `e`, if there is one."""
        if self._vector is None or not isinstance(e, Load):
            return None
        known = (self.writer.known((kind, self._vector.lane.extent, e)) for kind in (PACK, EACH))
        return next((k for k in known if k is not None), None)

    def lane_value(self, pack: str, dtype: DType, lane: str = LANE) -> str:
        """A lane's element of a pack of stored elements, as a value."""
        if dtype in SMALL_FLOATS:
            return f"mt_load_{SMALL_FLOATS[dtype]}(&{pack}.value[{lane}])"
        return f"{pack}[{lane}]"

    def write(self, tensor: Tensor, index: Sequence[Expr], place: Place, value: str) -> None:
        vector, first = self._vector, self._first(tensor, index, place)
        if vector is None or (first is None and tensor.name not in self.cells):
            super().write(tensor, index, place, value)
            return
        pack = self.writer.fresh("s")
        with self.writer.at(vector.outer):
            kind = STORAGE[tensor.dtype]
            self.writer.write(f"mt::Pack<{kind}, {vector.lane.extent}> {pack};")
            if first is not None:
                start = plus(*self.address(tensor, first, place))
            else:
                start = f"({kind}*)({plus('cell', str(self.cells[tensor.name]))})"
            if self.stored_if and first is not None and is_global(place):
                store = f"mt::store_if({self.stored_if}, {start}, {pack});"
            else:
                store = self.live(f"mt::store({start}, {pack});")
            vector.stores.append(store)
        if tensor.dtype in SMALL_FLOATS:
            name = SMALL_FLOATS[tensor.dtype]
            self.writer.write(f"mt_store_{name}(&{pack}.value[{LANE}], {bare(value)});")
        else:
            self.writer.write(f"{pack}[{LANE}] = {bare(value)};")

    def _in_memory(self, e: Expr) -> bool:
        return super()._in_memory(e) and self._pack_of(e) is None

    def _guarded(self, e: Expr, cond: Expr, then: Expr, otherwise: Expr) -> str:
        """Loads packs under a condition that is uniform over the lanes: their content where it fails is not used."""
        vector = self._vector
        if vector is not None and not self.facts and by_lane(e, vector.lane):
            return self.name(
                e, e.dtype, self._operation
            )  # the loop is unrolled: no code of the other side remains
        packs = None
        # For a selection, of which no side is in registers, one pack suffices: a lane's element comes from the same side as its
        # neighbours'.
        choice = is_choice(e) and not any(x.tensor.name in self.registers for x in loads(e))
        if vector is not None and not self.facts:
            packs = self._packs(cond, (then, otherwise), choice=choice)
        if vector is not None and packs is None and choice and (found := self._elements(e)):
            return self.name(e, e.dtype, lambda _: self._element(e, found))
        if vector is None or packs is None:
            return super()._guarded(e, cond, then, otherwise)
        if choice:
            known = self.writer.known((PACK, vector.lane.extent, e))
            pack = self._guarded_pack(packs, e) if known is None else known
            return self.name(e, e.dtype, lambda _: self.lane_value(pack, e.dtype))
        keys: list[tuple[str, int, Load]] = []
        for found in packs:
            key = (PACK, vector.lane.extent, found[0])
            if self.writer.known(key) is None:  # else an enclosing condition has it
                vector.outer.names[key] = self._guarded_pack([found], found[0])
                keys.append(key)
        then = without_masks(e, {x: cond for _, _, x in keys})  # packs are zero where it fails
        text = self.name(e, e.dtype, self._operation if then == e else lambda _: self.value(then))
        for key in keys:
            del vector.outer.names[key]
        for x, *_ in packs:
            vector.inner.names.pop(x, None)
        return text

    def _elements(self, e: Expr) -> list[Guarded]:
        """The loads from memory between which `e` selects, with their conditions; none where one depends on other loads, or is on chip."""
        found: list[Guarded] = []
        assert isinstance(e, Select)
        for x, when in guarded(e.cond, (e.then, e.otherwise)):
            if isinstance(x, Load):
                place = readable(self.plan.places[x.tensor.name], own=self.computed(x.tensor))
                looked_up = any(loads(i) for i in (*x.index, *(c for c, _ in when)))
                if looked_up or isinstance(place, ON_CHIP):
                    return []
                found.append((x, place, when))
        return found

    def _element(self, e: Expr, found: Sequence[Guarded]) -> str:
        """Text of the selected one of the elements that `_elements` gives, loaded here."""
        pack = self.writer.fresh("p")
        self.select(pack, e, found, 1)
        return self.lane_value(pack, e.dtype, "0")

    def _guarded_pack(self, packs: Sequence[Guarded], e: Expr) -> str:
        """The name of a pack with the load of `e` whose conditions hold, zeros if none do."""
        vector, pack = self._vector, self.writer.fresh("p")
        assert vector is not None
        kind = f"mt::Pack<{STORAGE[e.dtype]}, {vector.lane.extent}>"
        with self.writer.at(vector.outer):
            alike = [self._is_same(x) for x, *_ in packs]
            if len(packs) > 1 and not any(alike) and all(map(self._from_memory, packs)):
                self.select(pack, e, packs, vector.lane.extent)
                return pack
            tests = [self._test(when) for _, _, when in packs]
            with self.zeros_unless(pack, kind) as words:
                for (x, place, _), test, same in zip(packs, tests, alike, strict=True):
                    with self.writer.open(f"if ({test})", fence=True):
                        # Checks are emitted with the first index.
                        first = x.index if same else self._first(x.tensor, x.index, place)
                        assert first is not None
                        width = 1 if same else vector.lane.extent
                        read = self.packed(x.tensor, first, place, width)
                        read = f"mt::repeated<{vector.lane.extent}>({read})" if same else read
                        self.writer.write(f"{words} = mt::words({read});")
        return pack

    def _from_memory(self, found: Guarded) -> bool:
        """Whether it is loaded from memory, at an address that does not depend on data."""
        x, place, _ = found
        apart = isinstance(place, ON_CHIP) or self.register_array_of(x.tensor) is not None
        return not apart and not any(loads(i) for i in x.index)

    def register_array_of(self, tensor: Tensor) -> str | None:
        """Text of the pack of `tensor` that threads hold in registers; None where they load it."""
        return None

    def loads_from(self, *tensors: Tensor) -> str:
        """The function that loads from one of several addresses."""
        constant = all(t.name in self.constant for t in tensors)
        return "load_constant" if constant else "load"

    def _start(self, x: Load, place: Place, width: int) -> str:
        """Text of the address of the pack of `x`."""
        first = x.index if width == 1 else self._first(x.tensor, x.index, place)
        assert first is not None
        return plus(*self.address(x.tensor, first, place))

    def _test(self, when: Sequence[Holds]) -> str:
        """Text of the condition that all of `when` hold."""
        return " && ".join(f"{'' if holds else '!'}{self.value(c)}" for c, holds in when)

    def select(self, pack: str, e: Expr, parts: Sequence[Guarded], width: int) -> None:
        """Defines `pack` as `width` neighbours of the selected one of `parts`, by one load from one of their addresses; loads under separate
        branches would wait for one another."""
        starts = [self._start(x, place, width) for x, place, _ in parts]
        tests = [self._test(when) for _, _, when in parts]
        storage, at = STORAGE[e.dtype], self.writer.fresh("at")
        *_, text = starts
        for test, start in reversed([*zip(tests, starts, strict=True)][:-1]):
            text = f"{test} ? ({start}) : {text}"
        self.writer.write(f"const {storage}* const {at} = {text};")
        load = f"mt::{self.loads_from(*(x.tensor for x, *_ in parts))}<{width}>({at})"
        if any(isinstance(x, Const) for x in ends(e)):
            with self.zeros_unless(pack, f"mt::Pack<{storage}, {width}>") as words:
                some = ") || (".join(tests)
                self.writer.write(f"if (({some})) {words} = mt::words({load});")
        else:
            self.writer.write(f"const auto {pack} = {load};")

    def _packs(self, cond: Expr, sides: tuple[Expr, Expr], *, choice: bool) -> list[Guarded] | None:
        """The loads of both sides of a condition that can be packs, each with its conditions; None where there are none, or where they
        have other uses as well. A concatenation is a tree of conditions. choice: between loads, of which some may be of one element
        for all lanes."""
        vector = self._vector
        assert vector is not None
        found: list[Guarded] = []
        for node, when in guarded(cond, sides):
            if any(self.variables(c) & vector.inner.defines for c, _ in when):
                return None
            if any(loads(c) for c, _ in when[1:]):  # read only where those outside hold
                return None
            if loads(node) and self._uses.get(node, 0) > 1:
                return None
            if not isinstance(node, Load) or node.tensor.name in self.registers:
                continue
            place = readable(self.plan.places[node.tensor.name], own=node.tensor.name in self._own)
            index = self._steady(node.index)
            if index is None:
                return None
            if self._first(node.tensor, index, place) is None and not (
                choice and self._is_same(node)
            ):
                return None
            found.append((node, place, when))
        return None if found and all(self._is_same(x) for x, *_ in found) else found

    def _is_same(self, x: Load) -> bool:
        """Whether all lanes read one element, independent of data."""
        vector = self._vector
        assert vector is not None
        if x.tensor.name in self.watched or self.register_array_of(x.tensor) is not None:
            return False
        return not any(loads(i) or self.variables(i) & vector.inner.defines for i in x.index)

    def _steady(self, index: Sequence[Expr]) -> tuple[Expr, ...] | None:
        """`index` with a name for each data-dependent part, which may be read under a condition only; None if one differs from lane to
        lane."""
        vector = self._vector
        assert vector is not None
        if any(loads(i) and self.variables(i) & vector.inner.defines for i in index):
            return None
        return tuple(Axis(f"data{k}", 1) if loads(i) else i for k, i in enumerate(index))

    def _pack(
        self, e: Load, first: tuple[Expr, ...], place: Place, width: int, *, aligned: bool = True
    ) -> str:
        """The name of the pack that begins at the index `first` of the tensor of `e`."""
        key = (PACK if aligned else EACH, width, e)
        known = self.writer.known(key)
        if known is None:
            known = self.writer.fresh("p")
            home = self.home(Load(e.tensor, first))
            with self.writer.at(home):
                text = self.packed(e.tensor, first, place, width, aligned=aligned)
                self.writer.write(f"const auto {known} = {text};")
            home.names[key] = known
        return known

    def packed(
        self,
        tensor: Tensor,
        first: Sequence[Expr],
        place: Place,
        width: int,
        *,
        aligned: bool = True,
    ) -> str:
        """Text of the load of a pack that begins at the index `first`."""
        if (held := self.register_array_of(tensor)) is not None:
            return held
        start = plus(*self.read_at(tensor, first, place, width))
        kind = self.loads_from(tensor) + ("" if aligned else "_each")
        if self.now and kind == "load" and is_global(place):
            kind = "load_now"
        return f"mt::{kind}<{width}>({start})"

    def _first(
        self, tensor: Tensor, index: Sequence[Expr], place: Place, *, aligned: bool = True
    ) -> tuple[Expr, ...] | None:
        """The index of lane 0, if the open vector's lanes are a pack in memory: see `first_of`."""
        vector = self._vector
        if vector is None or self.facts or tensor.name in self.watched:
            return None
        inside = vector.inner.defines
        return self.first_of(tensor, index, place, vector.lane, inside, aligned=aligned)
