"""Splits the axis of a product whose readers need several of its elements, so that they can share its tasks.

The rotary embedding of a head of 2 n elements needs elements i and (i + n) % (2 n) for its element i. A task with some neighbouring rows of
the product has one of them, so the embedding waits for all tasks. With the axis as [heads, 2, n], a task that walks all of the axis of 2
and some of n has both, and the embedding becomes a further step of it. In general: readers at distances that are multiples of n need all
blocks of n, and some of each; readers within blocks (pairs of neighbours) need whole blocks, but not all of them.

Rows that are written into a cache head by head need the heads alone.

The order in memory stays the same, and so do tensors that are used as a whole: results, carried values, states.
"""

import itertools
import math
from collections.abc import Iterator, Mapping

import msgspec

from monotile.analysis.affine import affine
from monotile.analysis.dependence import loads_of
from monotile.analysis.uses import Uses
from monotile.ir.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    Load,
    Tensor,
    axes_of,
    loads,
    map_loads,
    substitute,
    walk,
)
from monotile.ir.program import Compute, Program, Scatter, Statement, statements
from monotile.transform.layout.parts import apart, joined
from monotile.transform.rewrite import map_exprs, map_program
from monotile.transform.simplify.simplify import factors_kept, simplify_compute, simplify_expr


class Place(msgspec.Struct, frozen=True):
    """A statement's axis that is split: its position, and its extent before. stored: whether it is a dimension of the tensor too; the
    axes that a Scatter walks are not."""

    position: int
    extent: int
    stored: bool = True


Places = Mapping[str, Place]  # by the statement's tensor


class Blocks(msgspec.Struct, frozen=True):
    """How axes are split: into heads of so many elements, these into blocks of so many, and so on; each size divides the one before."""

    sizes: tuple[int, ...]

    def of(self, extent: int) -> tuple[int, ...]:
        """The parts of an axis of this extent, none of which is 1; () where it has no whole number of blocks."""
        chain = (extent, *(n for n in self.sizes if n < extent))
        if any(a % b for a, b in itertools.pairwise(chain)):
            return ()
        return (*(a // b for a, b in itertools.pairwise(chain)), chain[-1])


def split_axes(program: Program, product: Compute) -> Program | None:
    """`program` with an axis of `product` split, and of all its element-wise followers; None where that brings no readers into its
    tasks."""
    whole = frozenset(Uses(program).whole)
    if product.live or product.out.name in whole:
        return None
    every = [s for s in statements(program.body) if isinstance(s, (Compute, Scatter))]
    for position, axis in enumerate(product.axes):
        places = _followers(every, product, Place(position, axis.extent), whole)
        for blocks in _blocks([s for s in every if s.out.name in places], product, places):
            split = _Split(places, blocks)
            made = map_program(program, split.statement)
            if split.aligned(made):
                return made
    return None


def _followers(
    every: list[Compute | Scatter], product: Compute, place: Place, whole: frozenset[str]
) -> dict[str, Place]:
    """`product`, and its transitive element-wise readers."""
    found = {product.out.name: place}
    for s in every:
        indices = _indices(s, found)
        if not indices or not _plain(s, found):
            continue
        inner = {_inner(i, s) for i in indices}
        axis = inner.pop() if len(inner) == 1 else None
        if axis is not None and (isinstance(s, Scatter) or s.out.name not in whole):
            stored = isinstance(s, Compute)
            found[s.out.name] = Place(s.axes.index(axis), axis.extent, stored)
    return found


def _plain(s: Compute | Scatter, places: Places) -> bool:
    """Whether an element of `s` depends on elements alone, which do not determine its index."""
    if isinstance(s, Compute):
        return s.combiner is None and not s.live
    return not any(_is_split(x, places) for i in s.index for x in loads(i))


def _is_split(x: Load, places: Places) -> bool:
    """Whether a dimension of what it reads is split."""
    return x.tensor.name in places and places[x.tensor.name].stored


def _indices(s: Compute | Scatter, places: Places) -> list[Expr]:
    """The distinct indices at which `s` reads along split axes."""
    read = (x for x in loads_of(s) if _is_split(x, places))
    return list(dict.fromkeys(x.index[places[x.tensor.name].position] for x in read))


def _inner(index: Expr, s: Compute | Scatter) -> Axis | None:
    """The axis of `s` along which it reads the elements of a head; None where there is none."""
    axes = {a for a in axes_of(index) if a.extent > 1}
    inner = axes - {a for a, _ in _heads(index)}
    if len(inner) != 1 or len(axes) > 2 or not axes <= set(s.axes) or loads(index):
        return None
    return inner.pop()


def _heads(index: Expr) -> list[tuple[Axis, int]]:
    """The axes whose steps are several elements, and how many: those of a head."""
    terms = affine(index).terms
    return [(a, c) for a, c in terms if isinstance(a, Axis) and a.extent > 1 and c > 1]


def _blocks(members: list[Compute | Scatter], product: Compute, places: Places) -> Iterator[Blocks]:
    """Ways to split all members: block sizes that divide all distances and extents, and the divisors of indices."""
    found = [_indices(s, places) for s in members]
    indices = [i for each in found for i in each]
    total = places[product.out.name].extent
    heads = {c for i in indices for _, c in _heads(i)} or {total}
    if len(heads) != 1:
        return
    head, extents = heads.pop(), [places[s.out.name].extent for s in members]
    shared = math.gcd(head, *extents)
    if all(len(each) < 2 for each in found):
        if shared < total and any(isinstance(s, Scatter) for s in members):
            yield Blocks(tuple(dict.fromkeys((head, shared))))
        return
    distance = math.gcd(shared, *(affine(i).constant for i in indices))
    ways = [(head, distance), *((head, shared, n) for n in sorted(_divisors(indices)))]
    for blocks in (Blocks(tuple(dict.fromkeys(w))) for w in dict.fromkeys(ways)):
        if 1 < blocks.sizes[-1] < head and all(map(blocks.of, extents)):
            yield blocks


def _divisors(indices: list[Expr]) -> set[int]:
    """Literal divisors in `indices`."""
    found = set[int]()
    for e in (e for i in indices for e in walk(i)):
        match e:
            case Binary("floordiv" | "mod", _, Const(value)):
                found.add(int(value))
            case _:
                pass
    return found


class _Split:
    """The axes at `places`, split into `blocks`."""

    def __init__(self, places: Places, blocks: Blocks) -> None:
        self.places, self.blocks = places, blocks

    def parts(self, name: str) -> tuple[int, ...]:
        """The extents that the axis of tensor `name` is split into."""
        return self.blocks.of(self.places[name].extent)

    def statement(self, s: Statement) -> Statement:
        """`s` with its axis split, reading all tensors in their new shapes."""
        if isinstance(s, (Compute, Scatter)) and s.out.name in self.places:
            s = self._with_parts(s)
        return factors_kept(s, self._reading) or map_exprs(s, self._reading)

    def aligned(self, program: Program) -> bool:
        """Whether tasks that have all of one part can have some of the other, and of the heads, and read nothing of other tasks."""
        return any(all(self._follows(s, x, part) for s, x in self._reads(program)) for part in (1, 2))  # fmt: skip

    def _reads(self, program: Program) -> Iterator[tuple[Compute | Scatter, Load]]:
        """Every member with what it reads of others."""
        for s in statements(program.body):
            if isinstance(s, (Compute, Scatter)) and s.out.name in self.places:
                yield from ((s, x) for x in loads_of(s) if _is_split(x, self.places))

    def _follows(self, s: Compute | Scatter, x: Load, part: int) -> bool:
        """Whether `s` reads `x` at its own index along the heads and along that part, counted from the last."""
        own, others = (
            (self.places[n].position, len(self.parts(n))) for n in (s.out.name, x.tensor.name)
        )
        if part > min(own[1], others[1]):
            return False
        several = self.places[x.tensor.name].extent > self.blocks.sizes[0]
        apart = not several or x.index[others[0]] in s.axes
        return apart and x.index[sum(others) - part] == s.axes[sum(own) - part]

    def _with_parts(self, s: Compute | Scatter) -> Compute | Scatter:
        position, parts = self.places[s.out.name].position, self.parts(s.out.name)
        shape = tuple(a.extent for a in s.axes)
        shape = (*shape[:position], *parts, *shape[position + 1 :])
        axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(shape))
        whole = joined(axes[position : position + len(parts)], parts)
        kept = (*axes[:position], whole, *axes[position + len(parts) :])
        names: dict[str, Expr] = {a.name: e for a, e in zip(s.axes, kept, strict=True)}

        def moved(e: Expr) -> Expr:
            return simplify_expr(substitute(e, names))

        if isinstance(s, Scatter):
            index, value = tuple(map(moved, s.index)), moved(s.value)
            return msgspec.structs.replace(s, axes=axes, index=index, value=value)
        out = Tensor(s.out.name, shape, s.out.dtype)
        body = substitute(s.body, names)
        return simplify_compute(msgspec.structs.replace(s, out=out, axes=axes, body=body))

    def _reading(self, e: Expr) -> Expr:
        """`e` with the indices of reshaped tensors adapted."""
        if not any(_is_split(x, self.places) for x in loads(e)):
            return e
        return simplify_expr(map_loads(e, self._load))

    def _load(self, x: Load) -> Expr:
        if not _is_split(x, self.places):
            return x
        position, parts = self.places[x.tensor.name].position, self.parts(x.tensor.name)
        before, at, after = x.index[:position], x.index[position], x.index[position + 1 :]
        shape = (*x.tensor.shape[:position], *parts, *x.tensor.shape[position + 1 :])
        return Load(Tensor(x.tensor.name, shape, x.dtype), (*before, *apart(at, parts), *after))
