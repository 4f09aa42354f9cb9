"""Reorders the sums of products to the memory order of the activations, and copies the weight to the same order.

After a channel shuffle, a flattening of a channels-last image, or a merge of heads into the last dimension, a product sums along an axis of
which the activation's index takes the quotient and the remainder:

    y[m, n] = sum over r of x[m, r % h, r // h] * w[n, r]
            = sum over a < h, b of x[m, a, b] * w'[n, a, b],        w'[n, a, b] = w[n, b * h + a]

So single elements of `x` become contiguous runs, which asynchronous copies can fetch.
"""

import math
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from monotile.analysis.affine import affine, contiguous_run, offset
from monotile.analysis.contraction import contraction
from monotile.analysis.masked import masked
from monotile.ir.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    Load,
    Tensor,
    add,
    axes_of,
    idx,
    loads,
    map_loads,
    mul,
    substitute,
    walk,
)
from monotile.ir.program import Compute, Program, Statement, compute
from monotile.transform.names import Names
from monotile.transform.rewrite import map_program
from monotile.transform.simplify.simplify import simplify_compute

ROWS = 64  # of a product that are worth a copy of the weight
RUN = 16  # neighbours that are worth it
VECTOR = 16  # bytes of which neighbours are whole copies


def order_sums(program: Program) -> Program:
    """`program` with such products; the same object if there are none."""
    weights = frozenset(w.tensor.name for w in program.weights)
    copies = _Copies(Names(program))

    def go(s: Statement) -> Statement:
        found = _interleaved(s, weights) if isinstance(s, Compute) else None
        return s if found is None else found.product(copies)

    program = map_program(program, go)
    body = (*copies.made.values(), *program.body)
    return msgspec.structs.replace(program, body=body) if copies.made else program


class _Copies:
    """The copies of weights, by the weight, the dimension of the sum, and the digits."""

    def __init__(self, names: Names) -> None:
        self.made: dict[tuple[str, int, tuple[int, ...]], Compute] = {}
        self._names = names

    def of(self, t: Tensor, d: int, digits: "_Digits") -> Tensor:
        """`t` with the digits of dimension d as dimensions."""
        key = (t.name, d, (*digits.units, *digits.extents))
        if key not in self.made:
            name = self._names.fresh(f"{t.name}_in_order")
            shape = (*t.shape[:d], *digits.extents, *t.shape[d + 1 :])
            out, count = Tensor(name, shape, t.dtype), len(digits.units)

            def body(*i: Expr) -> Expr:
                place = digits.place(i[d : d + count])
                return Load(t, (*i[:d], place, *i[d + count :]))

            self.made[key] = compute(out, body)
        return self.made[key].out


class _Digits(msgspec.Struct, frozen=True):
    """Digits of an index along the sum, the outermost of the new sums first. units: the weight of each digit. extents: how many values
    it has."""

    units: tuple[int, ...]
    extents: tuple[int, ...]

    def place(self, digits: tuple[Expr, ...]) -> Expr:
        whole: Expr = idx(0)
        for digit, unit in zip(digits, self.units, strict=True):
            whole = add(whole, mul(digit, idx(unit)))
        return whole


class _Interleaved(msgspec.Struct, frozen=True):
    """A product whose sum along `along` is one along its `digits`. weight: read at `along` in dimension d."""

    s: Compute
    along: Axis
    digits: _Digits
    weight: Load
    d: int

    def product(self, copies: _Copies) -> Compute:
        """With its new sums, reading the weight's copy."""
        s, at, count = self.s, self.s.reduce.index(self.along), len(self.digits.extents)
        extents = [a.extent for a in s.reduce]
        extents[at : at + 1] = self.digits.extents
        reduce = tuple(Axis(f"r{k}", n) for k, n in enumerate(extents))
        own = reduce[at : at + count]
        old, new = (*s.reduce[:at], *s.reduce[at + 1 :]), (*reduce[:at], *reduce[at + count :])
        names: dict[str, Expr] = {a.name: b for a, b in zip(old, new, strict=True)}
        names[self.along.name] = self.digits.place(own)
        copy, weight = (
            copies.of(self.weight.tensor, self.d, self.digits),
            substitute(self.weight, names),
        )

        def read(x: Load) -> Expr:
            return (
                Load(copy, (*x.index[: self.d], *own, *x.index[self.d + 1 :])) if x == weight else x
            )

        body = map_loads(substitute(s.body, names), read)
        return simplify_compute(msgspec.structs.replace(s, reduce=reduce, body=body))


def _interleaved(s: Compute, weights: frozenset[str]) -> _Interleaved | None:
    found = contraction(s)
    if found is None or s.live:
        return None
    for side, other in ((found.left, found.right), (found.right, found.left)):
        x, w = masked(side), masked(other)
        if x is None or w is None or w.load.tensor.name not in weights:
            continue
        rows = math.prod(a.extent for a in s.axes if a not in axes_of(other))
        for along in s.reduce if rows >= ROWS else ():
            at = [d for d, i in enumerate(w.load.index) if along in axes_of(i)]
            if len(at) != 1 or w.load.index[at[0]] != along or along in axes_of(w.cond):
                continue
            digits = _digits(x.load, along)
            if digits is not None and loads(s.body).count(w.load) == 1:
                return _Interleaved(s, along, digits, w.load, at[0])
    return None


def _digits(x: Load, along: Axis) -> _Digits | None:
    """The digits of `along` in the order in which `x` is contiguous; None where it is already, or cannot be."""
    vector = VECTOR // x.dtype.itemsize
    looked_up = any(along in axes_of(y) for i in x.index for y in loads(i))
    if looked_up or contiguous_run(offset(x), along, vector) == vector:
        return None
    cuts = {n for i in x.index for n in _cuts(i, along)}
    bounds = (1, *sorted(cuts - {1}), along.extent)
    if 0 in cuts or len(bounds) < 3 or any(b % a or a == b for a, b in pairwise(bounds)):
        return None
    axes = [Axis(f"digit{k}", b // a) for k, (a, b) in enumerate(pairwise(bounds))]
    every = _Digits(tuple(bounds[:-1]), tuple(a.extent for a in axes))
    place = {along.name: every.place(tuple(axes))}
    lies = offset(Load(x.tensor, tuple(affine(substitute(i, place)).expr for i in x.index)))
    order = sorted(range(len(axes)), key=lambda k: -abs(lies.coefficient(axes[k])))
    last = axes[order[-1]]
    known = all(lies.coefficient(a) for a in axes)
    whole = last.extent * x.dtype.itemsize % VECTOR == 0 and last.extent >= RUN
    if (
        not known
        or lies.coefficient(last) != 1
        or not whole
        or order == [*reversed(range(len(axes)))]
    ):
        return None
    return _Digits(tuple(every.units[k] for k in order), tuple(axes[k].extent for k in order))


def _cuts(e: Expr, along: Axis) -> Iterator[int]:
    """The divisors by which quotients and remainders split `along`; 0 where another expression does."""
    for node in walk(e):
        match node:
            case Binary("floordiv" | "mod", Binary("floordiv", a, Const(k)), Const(n)) if (
                a == along
            ):
                yield int(k) * int(n)
            case Binary("floordiv" | "mod", a, Const(n)) if a == along:
                yield int(n)
            case Binary("floordiv" | "mod", a, _) if along in axes_of(a):
                yield 0
            case _:
                pass
