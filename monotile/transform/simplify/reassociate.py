"""Reassociates products of three matrices where the other order takes much fewer operations: x (a b) becomes (x a) b.

    t[n] = sum over c of a[n, c] * b[n, c]      y[i] = sum over r of x[i, r] * t[f(i, r)]

is, if only a of a and b depends on r,

    m[i, c] = sum over r of x[i, r] * a[f(i, r), c]      y[i] = sum over c of m[i, c] * b[f(i, r), c]

Latent attention (DeepSeek) expands the cached latents of all positions to keys and values of each head; so reordered, the few queries are
projected to the latents instead, and the mixtures of latents to values. As long multiplications are at least halved.

x may be multiplied with a concatenation along r of t and something else, as keys have a rotated part. Then y sums over a concatenation of
c and the rest. `m` is rounded as t was, so that both orders round alike; types of a smaller range than float32's are left alone.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from monotile.analysis.contraction import contraction, in_tf32, uncast
from monotile.analysis.uses import Uses
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    add,
    axes_of,
    cast,
    idx,
    loads,
    map_loads,
    mul,
    sub,
    substitute,
)
from monotile.ir.program import Compute, Program, Statement, used
from monotile.transform.fusion.inline import element_of
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, with_body
from monotile.transform.simplify.dce import eliminate_dead_code
from monotile.transform.simplify.simplify import simplify_compute, simplify_expr

WORTH = 2  # times as many multiplications before
TYPES = (DType.BF16, DType.F32)


def reassociate(program: Program) -> Program:
    """`program` with such products in the cheaper order; the same object if there are none."""
    names, uses = Names(program), Uses(program)

    def go(body: Body) -> Body:
        body = tuple(map_bodies(s, go) for s in body)
        found = _Body.of(body)
        for s in body:
            if isinstance(s, Compute):
                found = _reordered(found.computes[s.out.name], found, uses, names)
        return found.statements

    found = with_body(program, go(program.body))
    return program if found is program else eliminate_dead_code(found)


@dataclass(frozen=True, slots=True)
class _Body:
    """The statements of a body. computes: by name. readers: of each tensor, by name."""

    statements: Body
    computes: Mapping[str, Compute]
    readers: Mapping[str, list[Statement]]

    @classmethod
    def of(cls, body: Body) -> "_Body":
        readers: dict[str, list[Statement]] = {}
        for s in body:
            for name in {t.name for t in used(s)}:
                readers.setdefault(name, []).append(s)
        return cls(body, {s.out.name: s for s in body if isinstance(s, Compute)}, readers)


@dataclass(frozen=True, slots=True)
class _Piece:
    """`value` at the positions from `first` to before `end` of a summed axis; it is in terms of that axis."""

    first: int
    end: int
    value: Expr

    @property
    def count(self) -> int:
        return self.end - self.first

    def moved(self, e: Expr, along: Axis, to: Expr) -> Expr:
        """`e` with position `to` of the piece in place of `along`."""
        return simplify_expr(substitute(e, {along.name: add(to, idx(self.first))}))


def _reordered(t: Compute, body: _Body, uses: Uses, names: Names) -> _Body:
    """`body` without `t`, if it is a product that all its readers multiply with something, which is worth multiplying first."""
    if contraction(t) is None or len(t.reduce) != 1 or t.live or in_tf32(t):
        return body
    if t.out.dtype not in TYPES or t.body.dtype is not DType.F32 or t.out.name in uses.whole:
        return body
    readers = _readers(t, body, uses)
    if readers is None:
        return body
    made: dict[str, tuple[Compute, ...]] = {}
    before, after = _multiplications(t), 0
    for reader in readers:
        instead = _instead(t, reader, names)
        if instead is None:
            return body
        made[reader.out.name] = instead
        before += _multiplications(reader)
        after += sum(_multiplications(s) for s in instead)
    if after * WORTH > before:
        return body
    out: list[Statement] = []
    for s in body.statements:
        own = isinstance(s, Compute) and made.get(s.out.name)
        out.extend(own or (s,))
    return _Body.of(tuple(out))


def _multiplications(s: Compute) -> int:
    return s.out.size * math.prod(a.extent for a in s.reduce) if s.reduce else 0


def _readers(t: Compute, body: _Body, uses: Uses) -> list[Compute] | None:
    """The sums that read `t`, directly or in a concatenation of their own; None if anything else does."""
    direct = body.readers.get(t.out.name, [])
    if not direct or len(direct) != uses.readers[t.out.name]:
        return None
    out: list[Compute] = []
    for s in direct:
        if not isinstance(s, Compute) or s.live:
            return None
        if s.combiner == "sum":
            out.append(s)
            continue
        behind = body.readers.get(s.out.name, [])
        own = s.out.name not in uses.whole and len(behind) == 1 == uses.readers[s.out.name]
        if s.combiner is not None or s.body.dtype is not s.out.dtype or not own:
            return None
        (reader,) = behind
        if not isinstance(reader, Compute) or reader.live or t.out in used(reader):
            return None
        whole = map_loads(reader.body, _element_in(s))
        out.append(msgspec.structs.replace(reader, body=whole))
    return out


def _element_in(s: Compute) -> Callable[[Load], Expr]:
    return lambda x: simplify_expr(element_of(s, x.index)) if x.tensor == s.out else x


def _instead(t: Compute, y: Compute, names: Names) -> tuple[Compute, ...] | None:
    """The statements in place of `y`, the last of which defines the same tensor; None if it is no such product."""
    if y.combiner != "sum" or len(y.reduce) != 1 or contraction(y) is None or in_tf32(y):
        return None
    assert isinstance(y.body, Binary)
    (along,), sides = y.reduce, (y.body.a, y.body.b)
    with_t = [k for k, e in enumerate(sides) if t.out in {x.tensor for x in loads(e)}]
    if len(with_t) != 1 or y.body.dtype is not DType.F32:
        return None
    x, value = uncast(sides[1 - with_t[0]]), uncast(sides[with_t[0]])
    pieces = list(_pieces(value, along, 0, along.extent))
    own = [p for p in pieces if t.out in {load.tensor for load in loads(p.value)}]
    if len(own) != 1 or not isinstance(own[0].value, Load) or x.dtype is not value.dtype:
        return None
    others = tuple(p for p in pieces if p is not own[0])
    return _Order(t, y, x, own[0], others, with_t[0] == 0, names).statements()


def _pieces(e: Expr, along: Axis, first: int, end: int) -> Iterator[_Piece]:
    """`e` at the positions from `first` to before `end` of `along`, divided where it selects by them."""
    match e:
        case Select(Binary("lt" | "ge" as op, Axis() as a, Const(at)), then, otherwise) if (
            a == along and first < int(at) < end
        ):
            below, above = (then, otherwise) if op == "lt" else (otherwise, then)
            yield from _pieces(below, along, first, int(at))
            yield from _pieces(above, along, int(at), end)
        case _:
            yield _Piece(first, end, e)


@dataclass(frozen=True, slots=True)
class _Order:
    """y = sum over its axis of x * (t in the piece `own`, else what `others` are), in the other order. second: whether x is the second
    factor of y."""

    t: Compute
    y: Compute
    x: Expr
    own: _Piece
    others: tuple[_Piece, ...]
    second: bool
    names: Names

    def statements(self) -> tuple[Compute, ...] | None:
        """Those in place of `y`; None if both factors of `t` depend on what `y` sums over, or types differ."""
        (along,), (summed,) = self.y.reduce, self.t.reduce
        assert isinstance(self.t.body, Binary)
        assert isinstance(self.own.value, Load)
        inner, latent = Axis("r0", self.own.count), Axis("latent", summed.extent)
        index = (self.own.moved(i, along, inner) for i in self.own.value.index)
        where: dict[str, Expr] = {a.name: i for a, i in zip(self.t.axes, index, strict=True)}
        where[summed.name] = latent
        first, rest = (
            simplify_expr(substitute(uncast(e), where)) for e in (self.t.body.a, self.t.body.b)
        )
        if inner in axes_of(rest):
            first, rest = rest, first
        same = {first.dtype, rest.dtype, self.x.dtype} == {self.t.out.dtype}
        if inner not in axes_of(first) or inner in axes_of(rest) or not same:
            return None
        product = self._product(self.own.moved(self.x, along, inner), first)
        made, found = self._stored(product, latent, (inner,))
        if not self.others:
            body = self._product(found, rest)
            return made, _settled(self.y, body, latent)
        sides = [(found, rest)]
        sides += [
            (p.moved(self.x, along, latent), p.moved(p.value, along, latent)) for p in self.others
        ]
        counts = (summed.extent, *(p.count for p in self.others))
        both = Axis("latent", sum(counts))
        x, x_there = self._stored(_joined([x for x, _ in sides], counts, both), both)
        z, z_there = self._stored(_joined([z for _, z in sides], counts, both), both)
        return made, x, z, _settled(self.y, self._product(x_there, z_there), both)

    def _product(self, x: Expr, z: Expr) -> Expr:
        sides = (cast(z, DType.F32), cast(x, DType.F32))
        return mul(*(sides if self.second else sides[::-1]))

    def _stored(self, e: Expr, last: Axis, reduce: tuple[Axis, ...] = ()) -> tuple[Compute, Load]:
        """`e`, or its sum over `reduce`, as a statement whose axes are those of `y` in `e` and then `last`, and an element of it there."""
        own = [a for a in (*self.y.axes, last) if a in axes_of(e)]
        axes = [Axis(f"i{k}", a.extent) for k, a in enumerate(own)]
        out = Tensor(
            self.names.fresh(f"{self.t.out.name}_latent"),
            tuple(a.extent for a in own),
            self.t.out.dtype,
        )
        body = substitute(e, {a.name: b for a, b in zip(own, axes, strict=True)})
        combiner = "sum" if reduce else None
        made = Compute(out, tuple(axes), reduce, combiner, body, self.y.origin)
        return made, Load(out, tuple(own))


def _joined(parts: Sequence[Expr], counts: Sequence[int], along: Axis) -> Expr:
    """The concatenation of `parts`, which have so many positions each of an axis with the name of `along`."""
    ends = list(itertools.accumulate(counts))
    begins = [end - n for n, end in zip(counts, ends, strict=True)]
    moved = [
        simplify_expr(substitute(e, {along.name: sub(along, idx(begin))}))
        for e, begin in zip(parts, begins, strict=True)
    ]
    out = moved[-1]
    for e, end in zip(moved[-2::-1], ends[-2::-1], strict=True):
        out = Select(Binary("lt", along, idx(end)), e, out)
    return out


def _settled(y: Compute, body: Expr, last: Axis) -> Compute:
    """`y` as the sum of `body` over `last`."""
    r = Axis("r0", last.extent)
    made = msgspec.structs.replace(y, reduce=(r,), body=substitute(body, {last.name: r}))
    return simplify_compute(made)
