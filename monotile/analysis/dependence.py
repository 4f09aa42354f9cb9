"""Element-wise dependence: the elements of a tensor that one element of its reader depends on (Souffle, ASPLOS'24).

If each element depends on one (one-to-one), a reader can be an epilogue of its producer, in a register. If it depends on many
(one-to-many), it has to wait for all of them: for the tile of its worker, or for every worker.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from monotile.analysis.affine import Affine, affine
from monotile.ir.expr import Axis, Cast, Expr, Load, axes_of, idx, loads, substitute
from monotile.ir.held import released
from monotile.ir.program import Compute, Program, Scatter, statements

Form = Literal["identity", "permuted", "injective", "broadcast", "stencil", "gather", "reduction"]
ONE_ON_ONE: frozenset[Form] = frozenset({"identity", "permuted", "injective", "broadcast"})


class Dependence(msgspec.Struct, frozen=True):
    """How `reader` depends on `tensor`, both by name. One element of the reader depends on

    identity:   the element at its own position;
    permuted:   the one at its position with the axes in another order;
    injective:  one that no other element of the reader depends on;
    broadcast:  one that others depend on as well;
    stencil:    several, at positions known at compile time;
    gather:     one or several, at positions given by data;
    reduction:  all along the reduce axes.
    """

    tensor: str
    reader: str
    form: Form

    @property
    def one_on_one(self) -> bool:
        return self.form in ONE_ON_ONE


def dependences(program: Program) -> Iterator[Dependence]:
    """One Dependence for every tensor that a Compute or Scatter loads, in program order; a Scatter's base is not a load."""
    for s in statements(program.body):
        if isinstance(s, (Compute, Scatter)):
            for name in dict.fromkeys(x.tensor.name for x in loads_of(s)):
                yield Dependence(name, s.out.name, form(s, name))


def loads_of(s: Compute | Scatter) -> tuple[Load, ...]:
    """Every Load of a statement, in order; for a Scatter the indices first."""
    if isinstance(s, Compute):
        return loads(s.body)
    return tuple(x for e in (*s.index, s.value) for x in loads(e))


def form(s: Compute | Scatter, tensor: str) -> Form:
    """How an element of `s` (of a Scatter: a point of its axes) depends on `tensor`, which it loads."""
    found = tuple(dict.fromkeys(x for x in loads_of(s) if x.tensor.name == tensor))
    if any(loads(i) for x in found for i in x.index):
        return "gather"
    reduce = frozenset(s.reduce) if isinstance(s, Compute) else frozenset[Axis]()
    if any(axes_of(i) & reduce for x in found for i in x.index):
        return "reduction"
    if follows(s, found):
        return "identity"
    if len(found) != 1:
        return "stencil"
    (load,) = found
    if _permutes(load, s.axes):
        return "permuted"
    return "injective" if len(independent(load.index, s.axes)) == len(s.axes) else "broadcast"


def follows(s: Compute | Scatter, found: Iterable[Load]) -> bool:
    """Whether each of these Loads in `s` reads the element at the reader's own position."""
    return all(
        len(x.index) == len(s.axes) and all(is_axis(x, d, s, d) for d in range(len(s.axes)))
        for x in found
    )


def updates_own(made: Compute | Scatter, s: Compute | Scatter) -> bool:
    """Whether `s` is a Scatter that writes each element of the Compute `made` over the one element of its base that this element reads."""
    if not isinstance(made, Compute) or not isinstance(s, Scatter):
        return False
    own = [x for x in loads_of(s) if x.tensor.name == made.out.name]
    if not own or [a.extent for a in made.axes] != [a.extent for a in s.axes]:
        return False

    def at(index: tuple[Expr, ...], axes: tuple[Axis, ...]) -> list[Expr]:
        to: dict[str, Expr] = {
            a.name: b if b.extent > 1 else idx(0) for a, b in zip(axes, s.axes, strict=True)
        }
        return [substitute(i, to) for i in index]

    old = [x.index for x in loads_of(made) if x.tensor.name == s.base.name]
    where = at(s.index, s.axes)
    return follows(s, own) and all(at(i, made.axes) == where for i in old)


def is_axis(x: Load, dimension: int, s: Compute | Scatter, position: int) -> bool:
    """Whether dimension `dimension` of `x` is indexed by exactly the axis at `position` of `s`."""
    index, axis = x.index[dimension], s.axes[position]
    return index == axis or (x.tensor.shape[dimension] == 1 and at_axis(index, axis))


def at_axis(index: Expr, axis: Axis) -> bool:
    """Whether `index` is the axis, or 0 where that has one point."""
    return index == axis or (axis.extent == 1 and index == idx(0))


def at_axes(index: Sequence[Expr], axes: Sequence[Axis]) -> bool:
    """Whether `index` is the point of these axes."""
    return len(index) == len(axes) and all(map(at_axis, index, axes))


def unrounded(e: Expr) -> Expr:
    """The value before casts between floating-point types."""
    while isinstance(e, Cast) and e.dtype.is_float and e.x.dtype.is_float:
        e = e.x
    return e


def _permutes(x: Load, axes: tuple[Axis, ...]) -> bool:
    """Whether the indices of `x` are a permutation of `axes`, ignoring axes of extent 1."""
    wanted = {a for a in axes if a.extent > 1}
    named = [i for i, n in zip(x.index, x.tensor.shape, strict=True) if n > 1]
    return set(named) == wanted and len(named) == len(wanted)


def independent(index: tuple[Expr, ...], axes: tuple[Axis, ...]) -> frozenset[int]:
    """Positions of those `axes` that the element at `index` determines: two points that differ in one of
    them, whatever the others are, have different indices.

    Per dimension: a sum of axes in which each stride exceeds the reach of all smaller ones.
    """
    known = {a for a in axes if a.extent <= 1}
    for e in index:
        known |= _determined(affine(e), axes)
    return frozenset(p for p, a in enumerate(axes) if a in known)


def apart(s: Scatter) -> frozenset[int]:
    """Positions of those axes along which no two writes of `s` collide, but for those of equal values beyond what is live."""
    if s.distinct:
        return frozenset(range(len(s.axes)))
    return independent(released(s)[0], s.axes)


def _determined(e: Affine, axes: tuple[Axis, ...]) -> set[Axis]:
    own = [(abs(c), atom) for atom, c in e.terms if axes_of(atom) & set(axes)]
    found: set[Axis] = set()
    reach = 0
    for stride, atom in sorted(own, key=lambda term: term[0]):
        if not isinstance(atom, Axis) or stride <= reach:
            return set()
        reach += stride * (atom.extent - 1)
        found.add(atom)
    return found
