"""Copies with permuted dimensions and zero padding, and where they are made."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from monotile.analysis.uses import mentions
from monotile.ir.expr import Axis, Binary, Expr, Load, Select, Tensor, const, idx, substitute
from monotile.ir.program import Compute, Loop, Program, Statement, compute, defined
from monotile.transform.rewrite import Body, map_bodies, with_body


def padded_copy(
    t: Tensor,
    name: str,
    order: Sequence[int],
    extents: Mapping[int, int],
    sizes: Mapping[int, Expr] = MappingProxyType({}),
) -> Compute:
    """`t`, called `name`: dimension k is dimension `order[k]` of `t`.

    extents: by dimension of `t`, the extents of those that are padded. sizes: by dimension, where others have zeros too.
    """
    out = Tensor(name, tuple(extents.get(d, t.shape[d]) for d in order), t.dtype)

    def body(*i: Expr) -> Expr:
        index = tuple(i[order.index(d)] for d in range(len(order)))
        ends = {d: idx(t.shape[d]) for d in extents} | dict(sizes)
        inside: Expr | None = None
        for d, end in ends.items():
            here = Binary("lt", index[d], end)
            inside = here if inside is None else Binary("and", inside, here)
        x = Load(t, index)
        return x if inside is None else Select(inside, x, const(0.0, t.dtype))

    return compute(out, body)


def below(e: Expr, axis: Axis, extent: int) -> Select:
    """`e` where `axis` is less than `extent`, and zero elsewhere."""
    return Select(Binary("lt", axis, idx(extent)), e, const(0.0, e.dtype))


def with_copies(program: Program, copies: Sequence[tuple[Tensor, Compute]]) -> Program:
    """`program` with padded copies of tensors where these are known: of given ones first. What is read by its copy alone is made padded."""
    read = mentions(program).keys() | {*program.watched}
    of = defaultdict[str, list[Compute]](list)
    for t, copy in copies:
        of[t.name].append(copy)
    given = (*program.inputs, *(w.tensor for w in program.weights))

    def made(s: Statement) -> Iterator[Statement]:
        s = map_bodies(s, go)
        if isinstance(s, Loop):
            begun = tuple(copy for c in s.carried for copy in of[c.param.name])
            s = msgspec.structs.replace(s, body=(*begun, *s.body)) if begun else s
        found = [copy for t in defined(s) for copy in of[t.name]]
        if isinstance(s, Compute) and len(found) == 1 and s.combiner is None and not s.live and s.out.name not in read:  # fmt: skip
            body = _defined_by(found[0].body, s)
            yield msgspec.structs.replace(found[0], body=body, origin=s.origin)
        else:
            yield from (s, *found)

    def go(body: Body) -> Body:
        return tuple(new for s in body for new in made(s))

    first = tuple(copy for t in given for copy in of[t.name])
    return with_body(program, (*first, *go(program.body))) if copies else program


def _defined_by(e: Expr, s: Compute) -> Expr:
    """`e`, loads of what `s` makes, or zero, by conditions: with the definition in their place."""
    match e:
        case Select(cond, a, b):
            return Select(cond, _defined_by(a, s), _defined_by(b, s))
        case Load(tensor, index) if tensor == s.out:
            return substitute(s.body, dict(zip((a.name for a in s.axes), index, strict=True)))
        case _:
            return const(0.0, s.body.dtype)
