"""Products with an operand that a mask makes mostly zero sum over lists of nonzeros, which the call computes (PIT, SOSP'23).

    out[m, n] = sum over k of x[m, k] * y[k, n],   x[m, k] = 0 where not mask[m // r, k // g]

becomes, with the list of true entries in each row of the mask (`nonzeros.py`),

    kept[m, j] = x[m, at(m, j)] for j < count[m // r] * g, else 0      at(m, j) = list[m // r, j // g] * g + j % g
    out[m, n] = sum over j of kept[m, j] * y[at(m, j), n]

(`kept` is a tensor where x is computed, or cannot be loaded in vectors, else part of the sum). The pass `bound_live` ends this sum at
the count. Lists are in order, so sums do not depend on how the kernel is run.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from monotile.analysis.affine import affine
from monotile.analysis.contraction import Contraction, contraction
from monotile.analysis.zeros import Patterns, patterns_of, read_patterns
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    MaskTensor,
    Select,
    Tensor,
    add,
    axes_of,
    binary,
    cast,
    const,
    idx,
    map_loads,
    mul,
    substitute,
)
from monotile.ir.program import At, Compute, Program, Statement, compute, defined, statements
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, map_exprs, map_program, with_body
from monotile.transform.simplify.simplify import simplify_expr
from monotile.transform.sparse.nonzeros import Nonzeros

LEAST_TERMS = 128  # of a sum
LEAST_RUN = 16  # rows that share a list: as many as tensor cores take at once
MOST_RUN = 256
VECTOR = 16  # contiguous bytes from which on a product copies an operand without a gathered copy
LEAST_SIDE = 16  # columns of the other operand


class _Walk(NamedTuple):
    """How a product uses lists. x: the operand that is mostly zero. at: the list; mask: of its rows and their operands. grain: terms of
    an entry."""

    x: Load
    at: tuple[At, ...]
    mask: Load
    k: Axis
    grain: int

    def listed(self, rows: Sequence[Expr], entry: Expr) -> Load:
        """The mask at an entry of K, in terms of the numbers of the rows' runs."""
        where: dict[str, Expr] = {
            x.axis.name: mul(r, idx(x.run)) for x, r in zip(self.at, rows, strict=True)
        }
        where[self.k.name] = mul(entry, idx(self.grain))
        index = tuple(affine(substitute(i, where)).expr for i in self.mask.index)
        return Load(self.mask.tensor, index)


def list_nonzeros(program: Program) -> Program:
    """`program` with such products summing over lists; masks are plain tensors afterwards."""
    made = (t for s in statements(program.body) for t in defined(s))
    if not any(isinstance(t, MaskTensor) for t in made):
        return program
    found = _Lists(program)
    return map_program(with_body(program, found.body(program.body, {})), _plain)


class _Lists:
    """made: tensors that a mask makes zero somewhere, by name."""

    def __init__(self, program: Program) -> None:
        self.names = Names(program)
        self.made: dict[str, Compute] = {}

    def body(self, body: Body, known: Patterns) -> Body:
        """`body`; known: the masks of the tensors around it."""
        here, made, out = dict(known), dict[Load, Nonzeros](), list[Statement]()
        for s in body:
            s = map_bodies(s, lambda inner: self.body(inner, here))
            if not isinstance(s, Compute):
                out.append(s)
            elif s.combiner is None:
                if patterns := patterns_of(s, here):
                    here[s.out.name] = s.axes, patterns
                    self.made[s.out.name] = s
                out.append(s)
            else:
                walk = next(_walks(s, here), None)
                out += [s] if walk is None else self._along(s, walk, made)
        return tuple(out)

    def _along(self, c: Compute, walk: _Walk, made: dict[Load, Nonzeros]) -> Iterator[Statement]:
        """`c` summing over lists, and the statements that it needs besides `made`."""
        rows = [x.extent for x in walk.at]
        named = [Axis(f"row{p}", n) for p, n in enumerate(rows)]
        key = walk.listed(named, Axis("entry", walk.k.extent // walk.grain))
        lists = made.get(key)
        if lists is None:
            size = walk.k.extent // walk.grain
            lists = made[key] = Nonzeros(rows, size, walk.listed, self.names, c.origin)
            yield from lists.made
        index = tuple(x.index for x in walk.at)
        entry, inner = (binary(op, walk.k, idx(walk.grain)) for op in ("floordiv", "mod"))
        k = add(mul(lists.position(index, entry), idx(walk.grain)), inner)
        moved = substitute(c.body, {walk.k.name: k})
        x = substitute(walk.x, {walk.k.name: k})
        value = substitute(simplify_expr(self._where_true(walk.x, walk.mask)), {walk.k.name: k})
        there = Binary("lt", walk.k, mul(Load(lists.count, index), idx(walk.grain)))
        put: Expr = Select(there, value, const(0, x.dtype))
        if not isinstance(value, Load) or walk.grain * value.dtype.itemsize < VECTOR:
            kept = self._kept(c, walk, put)
            yield kept
            own = tuple(a for a in c.axes if a in axes_of(walk.x))
            put = Load(kept.out, (*own, walk.k))
        yield msgspec.structs.replace(c, body=map_loads(moved, lambda y: put if y == x else y))

    def _where_true(self, e: Expr, mask: Load) -> Expr:
        """`e` where the mask is true, in terms of its operands."""

        def opened(x: Load) -> Expr:
            if x == mask:
                return const(True, DType.BOOL)
            s = self.made.get(x.tensor.name)
            if s is None:
                return x
            at = {a.name: i for a, i in zip(s.axes, x.index, strict=True)}
            return cast(self._where_true(substitute(s.body, at), mask), x.dtype)

        return map_loads(e, opened)

    def _kept(self, c: Compute, walk: _Walk, x: Expr) -> Compute:
        """The nonzeros of the operand, `x`, side by side."""
        own = tuple(a for a in c.axes if a in axes_of(walk.x))
        out = Tensor(
            self.names.fresh("kept"), tuple(a.extent for a in (*own, walk.k)), walk.x.dtype
        )

        def body(*axes: Expr) -> Expr:
            at = {a.name: i for a, i in zip((*own, walk.k), axes, strict=True)}
            return substitute(x, at)

        return compute(out, body, origin=c.origin)


def _walks(c: Compute, known: Patterns) -> Iterator[_Walk]:
    """The ways in which a product can sum over lists, in the order in which it reads its operands."""
    found = contraction(c)
    if found is None or len(c.reduce) != 1 or c.reduce[0].extent < LEAST_TERMS:
        return
    for x, pattern in read_patterns(c, known):
        sides = [s for s in (found.left, found.right) if s == x]
        if len(sides) == 1 and (walk := _walk(c, found, x, pattern)) is not None:
            yield walk


def _walk(c: Compute, found: Contraction, x: Load, mask: Load) -> _Walk | None:
    (k,) = c.reduce
    along = [i for i in mask.index if k in axes_of(i)]
    rows = [a for a in c.axes if any(a in axes_of(i) for i in mask.index)]
    if (
        len(along) != 1
        or not rows
        or any(a != k for a in axes_of(along[0]))
        or not {*rows} <= axes_of(x)
    ):
        return None
    m, n = ({c.axes[p] for p in side} for side in (found.m, found.n))
    own, other = (m, n) if x == found.left else (n, m)
    runs = {a: _run_of(mask.index, a) for a in rows}
    if other & runs.keys() or math.prod(a.extent for a in other) < LEAST_SIDE:
        return None
    # Tiles are of the rows that the mask does not depend on, or of a run of those that share a mask row; all other axes are a batch.
    whole = math.prod(a.extent for a in own - runs.keys())
    if max(whole, *(run for a, run in runs.items() if a in own), 1) < LEAST_RUN:
        return None
    at = [At(a, run if a in own else 1) for a, run in runs.items()]
    return _Walk(x, tuple(at), mask, k, _run_of(along, k))


def _run_of(index: Sequence[Expr], axis: Axis) -> int:
    """The longest aligned runs of `axis`, a power of two that divides it, within which these are the same."""
    run = math.gcd(axis.extent, MOST_RUN)
    while run > 1 and not _same_within(index, axis, run):
        run //= 2
    return run


def _same_within(index: Sequence[Expr], axis: Axis, run: int) -> bool:
    start = mul(Axis("run", axis.extent // run), idx(run))
    inside = [add(start, i) for i in (Axis("inside", run), idx(0))]
    first, second = ([affine(substitute(e, {axis.name: i})) for e in index] for i in inside)
    return first == second


def _plain(s: Statement) -> Statement:
    """`s` with plain Tensors for MaskTensors."""

    def plain(t: Tensor) -> Tensor:
        return Tensor(t.name, t.shape, t.dtype) if isinstance(t, MaskTensor) else t

    def load(x: Load) -> Load:
        return Load(plain(x.tensor), x.index) if isinstance(x.tensor, MaskTensor) else x

    s = map_exprs(s, lambda e: map_loads(e, load))
    if isinstance(s, Compute) and isinstance(s.out, MaskTensor):
        return msgspec.structs.replace(s, out=plain(s.out))
    return s
