"""Transposes Computes into the axis order of their pointwise readers.

A pointwise reader that reads a tensor under permuted axes, or with axes of extent 1 added or dropped, could be its epilogue except for
its shape. The tensor is then computed in the reader's shape, and the indices of all other readers are adapted; the arithmetic stays the
same. A reader that adds axes of extent 1 to statistics (`keepdim`) drops them instead, if its shape is free: a variance stays in the
shape of its mean. If the only reader of an element-wise statement walks it in another order, its dimensions are permuted to that order.
If only products read it, its dimensions lie as those of its operands, where these let it read others once and not again and again. What
mixes a few planes is a plane for each result, if its readers walk it so or are products.
"""

from collections.abc import Iterator, Mapping

import msgspec

from monotile.analysis.affine import offset
from monotile.analysis.contraction import contraction
from monotile.analysis.reuse import LARGE
from monotile.analysis.uses import Uses
from monotile.ir.expr import Axis, Expr, Load, Tensor, axes_of, idx, loads, map_loads, substitute
from monotile.ir.program import Compute, Program, Statement, statements
from monotile.transform.rewrite import Body, map_bodies, map_exprs, map_program

Order = tuple[int, ...]  # of dimensions: entry k is the old dimension

ROUNDS = 8  # limit of the chain of readers to follow


class Arrangement(msgspec.Struct, frozen=True):
    """A tensor's new shape; dimension k of it is the old dimension `source[k]`, or new and of extent 1 (None)."""

    out: Tensor
    source: tuple[int | None, ...]

    def index(self, old: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(idx(0) if d is None else old[d] for d in self.source)


def permuted(t: Tensor, order: Order, name: str) -> Arrangement:
    """`t`, called `name`, with its dimensions in this order."""
    return Arrangement(Tensor(name, tuple(t.shape[d] for d in order), t.dtype), order)


def align_axes(program: Program) -> Program:
    """`program` with producers in the shape of their pointwise readers, if only the order of axes differs."""
    for _ in range(ROUNDS):
        found = _arrangements(program)
        if not found:
            break
        program = map_program(program, lambda s, found=found: rearranged(s, found))
    found = _as_operands_lie(program)
    return map_program(program, lambda s: rearranged(s, found)) if found else program


def _arrangements(program: Program) -> dict[str, Arrangement]:
    uses = Uses(program)
    found: dict[str, Arrangement] = {}
    for body, here in _scopes(program.body, {}):
        decided: set[str] = set()
        for s in body:
            if not isinstance(s, Compute) or s.combiner is not None:
                continue
            for name in dict.fromkeys(x.tensor.name for x in loads(s.body)):
                if name not in here or name in decided or name in uses.whole:
                    continue
                arrangement = _arrangement(here[name], s) or _beside(here[name], s)
                if arrangement is None:
                    continue
                decided.add(name)  # by its first such reader
                if s.out.name not in uses.whole and _adds_units(here[name], arrangement):
                    found[s.out.name] = _in_shape_of(here[name], s)
                    continue
                moved = not _in_order(arrangement)
                if uses.readers[name] == 1 if moved else arrangement.out != here[name].out:
                    found[name] = arrangement
    return found


def _adds_units(p: Compute, a: Arrangement) -> bool:
    """Whether the reader of `p`, a reduction that is no product of two tensors, only adds axes of extent 1."""
    found = contraction(p)
    more = len(a.source) > len(p.axes) and _in_order(a)
    return more and p.combiner is not None and (found is None or found.left == found.right)


def _in_shape_of(p: Compute, reader: Compute) -> Arrangement:
    """`reader` in the shape of `p`, which it reads at its own axes."""
    index = next(x.index for x in loads(reader.body) if x.tensor.name == p.out.name)
    where = {a: d for d, a in enumerate(reader.axes)}
    source = tuple(where.get(i) if isinstance(i, Axis) else None for i in index)
    return Arrangement(Tensor(reader.out.name, p.out.shape, reader.out.dtype), source)


def _in_order(a: Arrangement) -> bool:
    kept = [d for d in a.source if d is not None]
    return kept == sorted(kept)


def _arrangement(p: Compute, reader: Compute) -> Arrangement | None:
    """The Arrangement of `p` in the shape of `reader`, if that reads one element of it at indices of axes alone."""
    places = {x.index for x in loads(reader.body) if x.tensor.name == p.out.name}
    if len(places) != 1 or p.out.size != reader.out.size or p.out.size == 0:
        return None
    (index,) = places
    where: dict[str, int] = {}  # axis of the reader -> dimension of p
    for d, (i, n) in enumerate(zip(index, p.out.shape, strict=True)):
        match i:
            case Axis(name, extent) if extent == n and name not in where:
                where[name] = d
            case _ if n == 1 and not loads(i):  # an axis of extent 1 is always 0
                pass
            case _:
                return None
    if any(a.extent != 1 and a.name not in where for a in reader.axes):
        return None
    if not where.keys() <= {a.name for a in reader.axes}:
        return None
    source = tuple(where.get(a.name) for a in reader.axes)
    return Arrangement(Tensor(p.out.name, reader.out.shape, p.out.dtype), source)


def _beside(p: Compute, reader: Compute) -> Arrangement | None:
    """The element-wise `p`, or product, with its dimensions in the order in which `reader` walks them, if that reads several elements of
    it, or one at an index computed from axes (an image enlarged along its rows, or as rows of patches; biases in one row): neighbours
    of the result then read neighbours of `p`."""
    places = [x.index for x in loads(reader.body) if x.tensor.name == p.out.name]
    plain = p.combiner is None or contraction(p) is not None
    if not plain or not 0 < p.out.size <= reader.out.size:
        return None
    axes = [a for a in reader.axes if a.extent > 1]
    walked: list[int] = []  # number of the innermost axis, for each dimension
    taken: list[set[Axis]] = []
    for exprs in zip(*places, strict=True):
        used = {a for i in exprs for a in axes_of(i) if a.extent > 1}
        if any(used & t and used != t for t in taken):
            return None
        if not used <= {*axes} or any(loads(i) for i in exprs):
            return None
        taken.append(used)
        walked.append(max(map(axes.index, used), default=-1))
    known = [k for k in walked if k >= 0]
    if not known or known[-1] == max(known):
        return None
    order = tuple(sorted(range(len(walked)), key=lambda d: walked[d]))
    return permuted(p.out, order, p.out.name)


def _as_operands_lie(program: Program) -> dict[str, Arrangement]:
    """The element-wise statements for products whose operands lie in another order than they are walked, by which a large one is read
    repeatedly (angles of positions, by each head)."""
    uses = Uses(program)
    every = [s for s in statements(program.body) if isinstance(s, Compute)]
    walked = {x.tensor.name for s in every if contraction(s) is None for x in loads(s.body)}
    found: dict[str, Arrangement] = {}
    for s in every:
        if s.combiner is not None or s.out.name in uses.whole:
            continue
        order = _order_of_operands(s) if s.out.name not in walked else None
        if order is not None and _is_read_repeatedly(s, order):
            found[s.out.name] = permuted(s.out, order, s.out.name)
        elif (order := _order_of_planes(s)) is not None:
            planes = permuted(s.out, order, s.out.name)
            if all(contraction(r) is not None or _walks(r, planes) for r in every):
                found[s.out.name] = planes
    return found


def _order_of_planes(s: Compute) -> Order | None:
    """The dimensions of `s`, whose neighbours are made of the same elements of planes, as those lie: the last one is the number of a plane."""
    if not s.axes:
        return None
    *rest, last = enumerate(s.axes)
    where: dict[Expr, int] = {a: d for d, a in rest if a.extent > 1}
    units = [d for d, a in rest if a.extent == 1]
    found: set[Order] = set()
    for x in loads(s.body):
        if x.tensor.nbytes > LARGE and axes_of(x) >= {*where}:
            left = iter(units)
            sized = zip(x.index, x.tensor.shape, strict=True)
            found.add(tuple(next(left, -1) if n == 1 else where.get(i, -1) if axes_of(i) else last[0] for i, n in sized))  # fmt: skip
    if len(found) != 1:
        return None
    (order,) = found
    return order if sorted(order) == [*range(len(s.axes))] and order[-1] != last[0] else None


def _walks(reader: Compute, a: Arrangement) -> bool:
    """Whether `reader` has its axes, and then those that it sums over, in the order of the dimensions of what it reads of `a`."""
    axes = [*reader.axes, *reader.reduce]
    for x in loads(reader.body):
        if x.tensor.name == a.out.name:
            index = (i for i, n in zip(a.index(x.index), a.out.shape, strict=True) if n > 1)
            found = [axes.index(i) if i in axes else -1 for i in index]
            if found != sorted({*found}) or -1 in found:
                return False
    return True


def _order_of_operands(s: Compute) -> Order | None:
    """The dimensions of `s` in the order in which those operands lie that have all of them, if that is another one with the same last
    dimension."""
    axes = [a for a in s.axes if a.extent > 1]
    found: set[Order] = set()
    for x in loads(s.body):
        if len(axes_of(x) & {*axes}) == len(axes):
            where = offset(x)
            steps = [where.coefficient(a) for a in s.axes]
            if not all(steps[d] > 0 or a.extent == 1 for d, a in enumerate(s.axes)):
                return None
            found.add(tuple(sorted(range(len(steps)), key=lambda d: (s.axes[d].extent > 1, -steps[d]))))  # fmt: skip
    if len(found) != 1 or not axes:
        return None
    (order,) = found
    moved = [d for d in order if s.axes[d].extent > 1]
    return order if moved != sorted(moved) and s.axes[order[-1]] == axes[-1] else None


def _is_read_repeatedly(s: Compute, order: Order) -> bool:
    """Whether a large operand without one of the axes is walked again for each place along it, and once in the new order."""
    new = [s.axes[d] for d in order]
    for x in loads(s.body):
        own = axes_of(x) & {*s.axes[:-1]}
        missing = [a for a in s.axes if a.extent > 1 and a not in axes_of(x)]
        if x.tensor.nbytes > LARGE and any(
            s.axes.index(m) < s.axes.index(a) and new.index(m) > new.index(a)
            for m in missing
            for a in own
        ):
            return True
    return False


def _scopes(
    body: Body, around: Mapping[str, Compute]
) -> Iterator[tuple[Body, Mapping[str, Compute]]]:
    """Every list of statements with the producers that may be transposed for its readers: its own, and element-wise ones outside."""
    here = {**around, **{s.out.name: s for s in body if isinstance(s, Compute)}}
    yield body, here
    plain = {name: c for name, c in here.items() if c.combiner is None}
    inner: list[Body] = []
    for s in body:
        map_bodies(s, lambda b: inner.append(b) or b)
    for b in inner:
        yield from _scopes(b, plain)


def rearranged(s: Statement, found: dict[str, Arrangement]) -> Statement:
    """`s` in its own new shape, reading every rearranged tensor in its new shape."""

    def read(x: Load) -> Expr:
        a = found.get(x.tensor.name)
        return x if a is None else Load(a.out, a.index(x.index))

    s = map_exprs(s, lambda e: map_loads(e, read))
    if not isinstance(s, Compute) or s.out.name not in found:
        return s
    a = found[s.out.name]
    axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(a.out.shape))
    names: dict[str, Expr] = {old.name: idx(0) for old in s.axes}
    for new, d in zip(axes, a.source, strict=True):
        if d is not None:
            names[s.axes[d].name] = new
    return Compute(a.out, axes, s.reduce, s.combiner, substitute(s.body, names), s.origin)
