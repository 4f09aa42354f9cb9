"""Splits attention with few rows along the keys (flash decoding; Dao et al., 2023): more tasks, and one stage instead of several.

Of S parts, part s has keys s, s + S, s + 2S, ...: whatever range of the keys is live, all parts have equally much of it. Each part computes
its own softmax: the maximum score, the exponentials relative to it, their sum, and the values weighted by them. With e[s] = exp(top[s] -
the largest top), they combine to

    result = (sum over s of e[s] * mixture[s]) / (sum over s of e[s] * total[s] + further terms)

which is pointwise. Where a sum has further terms (`transform/simplify/appended_terms.py`), one part may have all keys. A part without a live key has
the lowest finite number as its maximum, and the factor 0.

Where tensor cores weight the values (`kernels/attention`), the exponentials of a part are rounded as the whole's probabilities would be.
Then a part is one streamed step, in which heads that share keys read each key once. Otherwise separate reductions compute it.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from monotile.analysis.dependence import loads_of
from monotile.analysis.uses import mentions
from monotile.choice.digest import digest_program, digest_statements
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Tensor,
    Unary,
    add,
    cast,
    const,
    idx,
    map_loads,
    mul,
    rebuild,
    substitute,
)
from monotile.ir.program import Compute, Program, Statement, statements, used
from monotile.kernels.attention.match import softmax
from monotile.kernels.draft import Context
from monotile.kernels.registry import match
from monotile.schedule.live import bound
from monotile.schedule.tree import build, seconds
from monotile.targets.target import Target
from monotile.transform.names import Names
from monotile.transform.rewrite import map_bodies
from monotile.transform.simplify.appended_terms import LOWEST

PARTS = (2, 4, 8, 16)
LEAST = 32  # keys of a part


@dataclass(frozen=True, slots=True)
class Softmax:
    """result = sum over keys of shares * values. more: further terms of the sum of a row, in the axes of `shares`. inner: statements used only
    for it that have keys, in order, with the position of the keys among their axes; None where they reduce the keys."""

    result: Compute
    shares: Compute
    powers: Compute
    total: Compute
    top: Compute
    least: float
    more: tuple[Expr, ...]
    inner: Mapping[str, tuple[Compute, int | None]]
    keys: int


def split_keys(program: Program, target: Target, context: Context) -> Program:
    """`program` with those softmax-weighted sums split for which the cost model predicts a faster whole."""
    if not target.has.many_workers or not target.has.lockstep:
        return program
    computes = {s.out.name: s for s in statements(program.body) if isinstance(s, Compute)}
    uses = mentions(program)
    alike: dict[str, list[Softmax]] = {}
    for result in computes.values():
        found = _found(result, computes, uses)
        if found is not None and (found.more or _rows(found) < target.workers):
            alike.setdefault(_shape(found, context), []).append(found)
    for each in alike.values():
        program = _tried(program, each, context)  # which leaves all others unchanged
    return program


def _shape(found: Softmax, context: Context) -> str:
    return digest_statements((*(s for s, _ in found.inner.values()), found.result), context.tables)


def _rows(found: Softmax) -> int:
    return found.top.out.size


@dataclass(frozen=True, slots=True)
class _Way:
    """`program` with softmaxes in so many parts (1: unsplit). streamed: whether each part is one step."""

    parts: int
    streamed: bool
    program: Program


def _ways(program: Program, alike: Sequence[Softmax], context: Context) -> Iterator[_Way]:
    """The ways to split softmaxes that are alike, as layers' may be."""
    yield _Way(1, False, program)
    one = alike[0]
    for parts in (1, *PARTS) if one.more else PARTS:  # no family computes the further terms
        if one.keys % parts or one.keys // parts < LEAST:
            continue
        if _rows(one) * parts < 2 * context.target.workers:
            yield _Way(parts, False, _split(program, alike, parts, None))
        narrow = one.shares.out.dtype
        if narrow.itemsize == 2 and _Splitter(one, parts, narrow, Names(program)).streams(context):
            yield _Way(parts, True, _split(program, alike, parts, narrow))


def _tried(program: Program, alike: Sequence[Softmax], context: Context) -> Program:
    ways = list(_ways(program, alike, context))

    @functools.cache
    def cost(number: int) -> float:
        bounded = bound(ways[number].program, context.target, context)
        return seconds(build(bounded, context), context.target)

    chosen = context.choose(
        "split keys",
        range(len(ways)),
        shape=lambda: _shape(alike[0], context),
        cost=cost,
        value=lambda number: {"parts": ways[number].parts, "streamed": ways[number].streamed},
        around=lambda: digest_program(program),
    )
    return ways[chosen or 0].program


def _found(result: Compute, computes: Mapping[str, Compute], uses: Counter[str]) -> Softmax | None:
    """The softmax-weighted sum that ends in `result`, if its softmax is in float32, whatever the scores are, and has no other readers inside."""
    if result.combiner != "sum" or len(result.reduce) != 1 or result.body.dtype is not DType.F32:
        return None
    along = result.reduce[0]
    for x in loads_of(result):
        shares = computes.get(x.tensor.name)
        if shares is None or x.index.count(along) != 1:
            continue
        place = x.index.index(along)
        parts = softmax(shares, place, computes)
        if parts is None:
            continue
        powers, total, top, scores, least, more = parts
        inner = {
            s.out.name: (s, p)
            for s, p in (
                (scores, place),
                (top, None),
                (powers, place),
                (total, None),
                (shares, place),
            )
        }
        found = Softmax(result, shares, powers, total, top, least, more, inner, along.extent)
        return _with_producers(found, computes, uses)
    return None


def _with_producers(
    found: Softmax, computes: Mapping[str, Compute], uses: Counter[str]
) -> Softmax | None:
    """`found` with the preceding statements that are used for its keys alone."""
    inner = dict(found.inner)
    while True:
        within = Counter(
            t.name for s in (*(s for s, _ in inner.values()), found.result) for t in used(s)
        )
        more = {
            x.tensor.name: x.index.index(s.axes[p])
            for s, p in inner.values()
            if p is not None
            for x in loads_of(s)
            if x.tensor.name not in inner
            and x.tensor.name in computes
            and x.index.count(s.axes[p]) == 1
            and uses[x.tensor.name] == within[x.tensor.name]
            and all(a not in s.reduce for a in (s.axes[p],))
        }
        if not more:
            break
        inner |= {name: (computes[name], p) for name, p in more.items()}
    own = all(uses[name] == within[name] for name in inner)
    wide = all(
        s.body.dtype is s.out.dtype is DType.F32 for s in (found.top, found.powers, found.total)
    )
    order = {name: inner[name] for name in computes if name in inner}
    return dataclasses.replace(found, inner=order) if own and wide else None


class _Splitter:
    """Builds the parts. narrow: the dtype to which exponentials are rounded before they weight the values; None for no rounding."""

    def __init__(self, found: Softmax, parts: int, narrow: DType | None, names: Names) -> None:
        self.found, self.parts, self.narrow = found, parts, narrow
        self.places = {n: p for n, (_, p) in found.inner.items() if n != found.shares.out.name}
        self.made = {n: self._tensor(found.inner[n][0], p, names) for n, p in self.places.items()}
        shape = (parts, *found.result.out.shape)
        self.mixture = Tensor(names.fresh(f"{found.result.out.name}_parts"), shape, DType.F32)

    def _tensor(self, s: Compute, p: int | None, names: Names) -> Tensor:
        shape = [self.found.keys // self.parts if q == p else n for q, n in enumerate(s.out.shape)]
        return Tensor(names.fresh(f"{s.out.name}_parts"), (self.parts, *shape), s.out.dtype)

    def all(self) -> Iterator[Compute]:
        for name, p in self.places.items():
            s = self.found.inner[name][0]
            yield self._part(s, self.made[name], s.body, s.reduce[0] if p is None else s.axes[p])
        result = self.found.result
        yield self._part(result, self.mixture, self._weighted(result.body), result.reduce[0])
        yield self._together()

    def streams(self, context: Context) -> bool:
        """Whether a family computes a part as one step."""
        made = {s.out.name: s for s in self.all()}
        whole = match(made[self.mixture.name], made, context)
        return whole is not None and whole.data is not None

    def _part(self, s: Compute, out: Tensor, body: Expr, key: Axis) -> Compute:
        """The part of `s`, in which `key` has a stride of the number of parts."""
        part, *axes = (Axis(f"i{k}", n) for k, n in enumerate(out.shape))
        inner = {a: Axis(f"r{k}", a.extent) for k, a in enumerate(s.reduce)}
        if key in inner:
            inner[key] = Axis(inner[key].name, key.extent // self.parts)
        moved: dict[str, Expr] = {a.name: b for a, b in zip(s.axes, axes, strict=True)}
        moved |= {a.name: b for a, b in inner.items()}
        walked = moved[key.name]
        whole = add(mul(walked, idx(self.parts)), part) if self.parts > 1 else walked
        body = self._read(substitute(body, moved | {key.name: whole}), part, whole, walked)
        if s is self.found.top and not _is_finite(body):
            body = Binary("max", body, const(LOWEST, DType.F32))
        return Compute(out, (part, *axes), tuple(inner.values()), s.combiner, body, s.origin)

    def _read(self, e: Expr, part: Expr, whole: Expr, walked: Expr) -> Expr:
        """`e`, reading the parts of split tensors."""

        def read(x: Load) -> Load:
            t = self.made.get(x.tensor.name)
            if t is None:
                return x
            return Load(t, (part, *(walked if i == whole else i for i in x.index)))

        return map_loads(e, read)

    def _weighted(self, e: Expr) -> Expr:
        """`e` with exponentials in place of the probabilities, which would be rounded first."""
        shares, powers = self.found.shares.out, self.found.powers.out
        match e:
            case Cast(Load(t, index), DType.F32) | Load(t, index) if t == shares:
                power = Load(powers, index)
                return power if self.narrow is None else Cast(Cast(power, self.narrow), DType.F32)
            case _:
                return rebuild(e, self._weighted)

    def _together(self) -> Compute:
        """The result of all parts, element by element."""
        found, result = self.found, self.found.result
        (x,) = {x for x in loads_of(result) if x.tensor == found.shares.out}
        row = tuple(i for i in x.index if i != result.reduce[0])
        tops, totals = (
            [Load(self.made[s.out.name], (idx(k), *row)) for k in range(self.parts)]
            for s in (found.top, found.total)
        )
        most = functools.reduce(lambda a, b: Binary("max", a, b), tops[1:], tops[0])
        factors = [Unary("exp", Binary("sub", t, most)) for t in tops]
        mixed = [mul(f, Load(self.mixture, (idx(k), *result.axes))) for k, f in enumerate(factors)]
        below = functools.reduce(add, (mul(f, t) for f, t in zip(factors, totals, strict=True)))
        at = {a.name: i for a, i in zip(found.shares.axes, x.index, strict=True)}
        for term in found.more:
            own = map_loads(
                substitute(term, at), lambda y: most if y.tensor == found.top.out else y
            )
            below = add(below, own)
        if found.least:
            below = Binary("max", below, const(found.least, DType.F32))
        body = Binary("div", functools.reduce(add, mixed), below)
        return Compute(
            result.out, result.axes, (), None, cast(body, result.out.dtype), result.origin
        )


def _is_finite(top: Expr) -> bool:
    """Whether the maximum score is finite, also for a part without a live key."""
    return isinstance(top, Binary) and top.op == "max" and isinstance(top.b, Const)


def _split(program: Program, alike: Sequence[Softmax], parts: int, narrow: DType | None) -> Program:  # fmt: skip
    """`program` with the parts in place of each whole."""
    names = Names(program)
    made = {id(x.result): tuple(_Splitter(x, parts, narrow, names).all()) for x in alike}
    gone = {name for x in alike for name in x.inner}

    def go(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        out: list[Statement] = []
        for s in body:
            if id(s) in made:
                out.extend(made[id(s)])
            elif not (isinstance(s, Compute) and s.out.name in gone):
                out.append(map_bodies(s, go))
        return tuple(out)

    return msgspec.structs.replace(program, body=go(program.body))
