"""Prefetched packs: loaded by one function, returned as a struct, and unpacked by another."""

from collections.abc import Hashable, Mapping, Set

from monotile.analysis.affine import affine
from monotile.analysis.unconditional import TRUE
from monotile.codegen.address import WIDEST, others, readable
from monotile.codegen.base import STORAGE, plus
from monotile.codegen.packs import EACH, PACK, PackEmitter, lane_of
from monotile.codegen.spelling import bare
from monotile.ir.expr import (
    Binary,
    Const,
    Expr,
    Load,
    Select,
    SizeTensor,
    add,
    axes_of,
    idx,
    loads,
    mul,
)
from monotile.plan.places import Place

_TWO = "two"  # name of two packs around one that is not aligned


class VectorEmitter(PackEmitter):
    """Loads packs ahead of their use."""

    def held(
        self,
        wanted: Mapping[Load, Expr] | Mapping[Load | Select, Expr],
        width: int,
        name: str = "held",
        *,
        unaligned: bool = False,
    ) -> dict[Hashable, str]:
        """Emits the loads `wanted` of `width` lanes, each under its condition, and returns them all as one struct; gives the texts under
        which another function knows them as members of `name`. Omitted: look-ups whose indices have not been loaded, loads that
        cannot be packs, and conditions that differ from lane to lane. A selection between loads is one pack. unaligned: includes
        unaligned packs whose conditions only mark the ends of rows; `joined` has to be called for them."""
        packs: dict[Load | Select, str] = {}
        each, two, widths = set[Load | Select](), set[Load | Select](), dict[Load | Select, int]()
        with self.vector(width):
            for x, when in wanted.items():
                if isinstance(x, Select):
                    if self._vector is None:
                        packs |= self._chosen(x)
                    elif (
                        found := self._packs(x.cond, (x.then, x.otherwise), choice=True)
                    ) is not None:
                        packs[x] = self._guarded_pack(found, x)
                    continue
                place = readable(self.plan.places[x.tensor.name], own=self.computed(x.tensor))
                asked = (y for i in x.index for y in loads(i))
                if any(self.writer.known(y) is None for y in asked if not isinstance(y.tensor, SizeTensor)):  # fmt: skip
                    continue
                first = x.index if width == 1 else self._first(x.tensor, x.index, place)
                if first is None and self.cells:
                    first = self._first(x.tensor, x.index, place, aligned=False)
                    each.add(x)
                if first is None and unaligned and (text := self._until(x, when, place)):
                    packs[x] = text
                    two.add(x)
                    continue
                if first is None and width > 1 and (piece := self.in_pack(x, place)):
                    if axes_of(when) <= {lane_of(width)}:  # a lane at least reads there
                        packs[piece.words] = self._pack(piece.words, piece.first, place, piece.width)  # fmt: skip
                        widths[piece.words] = piece.width
                    continue
                if first is None or (width > 1 and lane_of(width) in axes_of(when)):
                    continue
                if when == TRUE:
                    packs[x] = self._pack(x, tuple(first), place, width, aligned=x not in each)
                    continue
                packs[x] = self._pack_where(when, x, tuple(first), place, width, aligned=x not in each)  # fmt: skip
            self._give(packs, two, {x: widths.get(x, width) for x in packs})
        return {
            (
                x
                if width == 1
                else (_TWO if x in two else EACH if x in each else PACK, widths.get(x, width), x)
            ): (self.lane_value(f"{name}.h{k}", x.dtype, "0") if width == 1 else f"{name}.h{k}")
            for k, x in enumerate(packs)
        }

    def _pack_where(
        self,
        when: Expr,
        x: Load,
        first: tuple[Expr, ...],
        place: Place,
        width: int,
        *,
        aligned: bool,
    ) -> str:
        """The name of the pack that `x` loads from `first` on, zeros where `when` fails."""
        pack, kind = self.writer.fresh("p"), f"mt::Pack<{STORAGE[x.tensor.dtype]}, {width}>"
        with (
            self.writer.at(self._vector.outer if self._vector else self.writer.block),
            self.zeros_unless(pack, kind) as words,
            self.writer.open(f"if ({bare(self.root(when))})", fence=True),
        ):
            text = self.packed(x.tensor, first, place, width, aligned=aligned)
            self.writer.write(f"{words} = mt::words({text});")
        return pack

    def _chosen(self, e: Select) -> dict[Load | Select, str]:
        """The selected element, by one load from an address that depends on the conditions; nothing where a condition depends on other
        loads."""
        found = self._elements(e)
        if not found:
            return {}
        pack = self.writer.fresh("p")
        self.select(pack, e, found, 1)
        return {e: pack}

    def _give(
        self,
        packs: Mapping[Load | Select, str],
        two: Set[Load | Select],
        widths: Mapping[Load | Select, int],
    ) -> None:
        """Emits the return of all `packs` as one struct; those in `two` as the aligned packs around them."""
        fields = " ".join(
            f"mt::{'Unaligned' if x in two else 'Pack'}<{STORAGE[x.dtype]}, {widths[x]}> h{k};"
            for k, x in enumerate(packs)
        )
        lines = ["return mt::Nothing{};"]
        if packs:
            result = f"return Fetched{{{', '.join(packs.values())}}};"
            lines = [f"struct Fetched {{ {fields} }};", result]
        if self._vector is not None:
            self._vector.stores.extend(lines)
            return
        for line in lines:
            self.writer.write(line)

    def joined(self, names: Mapping[Hashable, str]) -> dict[Hashable, str]:
        """The result of `held`, with a name for each pack that is split over two."""
        out: dict[Hashable, str] = {}
        for key, text in names.items():
            if isinstance(key, tuple) and key[0] == _TWO:
                pack = self.writer.fresh("p")
                self.writer.write(f"const auto {pack} = mt::joined({text});")
                out[PACK, *key[1:]] = pack
            else:
                out[key] = text
        return out

    def _until(self, x: Load, when: Expr, place: Place) -> str | None:
        """Text of the load of lanes whose elements are contiguous but not aligned, as far as `when` limits them; None where it is
        another kind of condition."""
        vector = self._vector
        match when:
            case Binary("lt", i, Const(end)) if vector is not None:
                lane, where = vector.lane, affine(i)
            case _:
                return None
        whole = lane.extent * x.dtype.itemsize in (WIDEST // 2, WIDEST)
        first = self._first(x.tensor, x.index, place, aligned=False)
        apart = others(where, lane)
        if not whole or first is None or where.coefficient(lane) != 1 or apart.mentions(lane):
            return None
        count = self.value(add(idx(int(end)), mul(apart.expr, idx(-1))))
        start = plus(*self.address(x.tensor, first, place))
        return f"mt::{self.loads_from(x.tensor)}_unaligned<{lane.extent}>({start}, {bare(count)})"
