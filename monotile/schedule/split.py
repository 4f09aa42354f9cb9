"""Splitting along the reduction: a product with few outputs and a long K becomes partial sums by more tasks.

out = sum over k of body  becomes  parts[s, ...] = sum over the k of part s, out = parts[0, ...] + parts[1, ...] + ...
The second is pointwise: it joins the stage that uses `out`, so it costs no barrier of its own where a reduction (a
normalisation, say) follows. Its order is fixed, so results repeat to the bit.

A reduction of much to a value or a few (whether any element is infinite, a mean of everything) would be one task: it is split
in the same way, and what its readers need of the few is computed by each of them. Or it is answered where its terms are made (`gather.py`).

One of an image to a value for each channel (pooling) is split by rows of the image: what makes a row may reduce it as well.
"""

import functools
import math
from collections.abc import Iterator

import msgspec

from monotile.choice.digest import digest_program, digest_statements
from monotile.choice.spec import Value
from monotile.ir.expr import loads
from monotile.ir.program import Branch, Compute, Program, Scatter, Statement, statements
from monotile.kernels.draft import Context
from monotile.kernels.group import single
from monotile.kernels.registry import tiled
from monotile.schedule.parts import COMBINE, FEW, Parts, combined, partial, straight
from monotile.schedule.tiles import cut
from monotile.schedule.tree import build, seconds
from monotile.targets.target import Target
from monotile.transform.fusion.inline import inline_where
from monotile.transform.names import Names
from monotile.transform.predicates import fused_predicate
from monotile.transform.rewrite import map_bodies
from monotile.transform.simplify.dce import eliminate_dead_code

PARTS = (2, 4, 8)
ROUNDS = 4
MUCH = 1 << 13  # terms of a reduction to few results that more tasks share
LEAST, MOST_ROWS = 1 << 15, 1024  # elements of an image that is reduced row by row, and its rows
Instead = (
    tuple[Compute, Compute] | tuple[Compute, Scatter, Compute]
)  # the last one has the old name
CHUNK = 128  # a part's share of K is a multiple of this
LINE = 32  # and its share of a convolution's channels of this


def split_reductions(
    program: Program,
    target: Target,
    context: Context | None = None,
    within: frozenset[str] | None = None,
) -> Program:
    """`program` with those products split whose split makes the whole schedule faster, by the cost model. within: names of the tensors in question, if
    not all are."""
    if not target.has.many_workers:  # there is no lack of tasks
        return program
    context = context or Context.of(program, target)
    branches = any(isinstance(s, Branch) for s in statements(program.body))
    for _ in range(ROUNDS if branches else 1):  # another side may be the longer one now
        before, program = program, _asked_once(program, context, within)
        if program is before:
            break
    return program


def _asked_once(program: Program, context: Context, within: frozenset[str] | None) -> Program:
    """`program` with each split that makes it faster than with those before."""
    now = _Way(1, program, context)
    names = Names(program)
    every = (s for s in statements(program.body) if isinstance(s, Compute))
    for c in [s for s in every if within is None or s.out.name in within]:
        whole = c.out.name.removesuffix("_parts")
        if f"{c.out.name}_parts" in names or (whole != c.out.name and whole in names):
            continue  # it has parts, which a loop may have made an iteration ahead, or is one
        now = _tried(now, c, context)
    return now.program


class _Way:
    """A Program with a Compute in so many parts (1: as it is), and how long its schedule takes. worth: whether the Compute itself is faster."""

    def __init__(self, parts: Value, program: Program, context: Context, worth: bool = True):
        self.parts, self.program, self.context, self.worth = parts, program, context, worth

    @functools.cached_property
    def seconds(self) -> float:
        return seconds(build(self.program, self.context), self.context.target)


def _tried(now: _Way, c: Compute, context: Context) -> _Way:
    """`now` with `c` as it is, or split: in the first of the ways that are worth it with which the whole is faster."""
    ways: list[_Way] = []
    for parts, instead, worth in _instead(c, context):
        candidate = _replace(now.program, c, instead)
        if c.out.size <= FEW:
            candidate = _by_readers(candidate, loads(instead[-1].body)[0].tensor.name)
        ways.append(_Way(parts, candidate, context, worth))
    if not ways:
        return now

    def cost(way: _Way) -> float:
        if way is now:
            return now.seconds
        before = ways[: ways.index(way)]
        if not way.worth or any(w.worth and w.seconds < now.seconds for w in before):
            return math.inf
        return way.seconds

    def shape() -> str:
        every = [s for s in statements(now.program.body) if isinstance(s, Compute)]
        readers = (s for s in every if c.out in {x.tensor for x in loads(s.body)})
        return digest_statements((c, *readers), context.tables)

    def around() -> str:
        return digest_program(now.program, [*statements(now.program.body)].index(c))

    found = context.choose(
        "split",
        (now, *ways),
        shape=shape,
        cost=cost,
        value=lambda way: 1 if way is now else way.parts,
        around=around,
    )
    return found or now


def _instead(c: Compute, context: Context) -> Iterator[tuple[Value, Instead, bool]]:
    """What may be computed instead of `c`: how many parts, what, and whether it is worth trying. Parts that make a product itself faster are, the
    fastest first; of a reduction to few values the most, or what is gathered where its terms are made."""
    if any(x.axis in c.reduce for x in c.live):
        return
    if c.combiner in COMBINE and c.out.size <= FEW:
        terms = math.prod(a.extent for a in c.reduce)
        if terms >= MUCH and (made := fused_predicate(c)) is not None:
            yield "gathered", made, True
        parts = straight(c)
        if terms >= MUCH and parts is not None:
            yield parts.count, _split(c, parts), True
        return
    if _by_rows(c, context):
        rows = c.reduce[0].extent
        yield rows, _split(c, Parts(0, rows)), True
    if not tiled(c, context):
        return
    whole, target = cut(single(c), context), context.target
    # What a split has to gain: of one axis the whole schedule says it; of windows, of which there are many in a network, a barrier at least.
    margin = target.barrier_seconds if len(c.reduce) > 1 else 0.0
    found: list[tuple[bool, float, Parts]] = []
    for count in PARTS:
        parts = _shares(c, count)
        if whole is None or parts is None:
            continue
        draft = cut(single(partial(c, parts)), context)
        moved = 2 * count * c.out.size * 4
        extra = moved / (target.worker_bandwidth * target.workers)
        if draft is not None:
            spent = draft.seconds + extra
            found.append((spent + margin >= whole.seconds, spent, parts))
    for slower, _, parts in sorted(found, key=lambda way: way[:2]):
        yield parts.count, _split(c, parts), not slower


def _shares(c: Compute, count: int) -> Parts | None:
    """So many parts of the sums of a product, each of whole chunks; of a convolution, of its channels."""
    axis = max(range(len(c.reduce)), key=lambda p: c.reduce[p].extent)
    least = CHUNK if len(c.reduce) == 1 else LINE
    terms = math.prod(a.extent for a in c.reduce)
    if c.reduce[axis].extent % (count * least) or terms < count * CHUNK:
        return None
    return Parts(axis, count)


def _by_rows(c: Compute, context: Context) -> bool:
    """Whether `c` reduces rows of rows, much for each of fewer results than there are threads."""
    threads = context.target.threads * context.target.workers
    return (
        c.combiner in COMBINE
        and len(c.reduce) > 1
        and FEW < c.out.size <= threads // 4
        and PARTS[-1] < c.reduce[0].extent <= MOST_ROWS
        and c.out.size * math.prod(a.extent for a in c.reduce) >= LEAST
        and not tiled(c, context)
    )


def _split(c: Compute, parts: Parts) -> tuple[Compute, Compute]:
    """The partial results, and what they give together under the old name."""
    first = partial(c, parts)
    return first, combined(c, first.out)


def _by_readers(program: Program, parts: str) -> Program:
    """`program` with what is made of the tensor `parts`, element by element and as small, evaluated where it is read."""

    def small(p: Compute) -> bool:
        return p.out.size <= FEW and parts in {x.tensor.name for x in loads(p.body)}

    return eliminate_dead_code(inline_where(program, small))


def _replace(program: Program, old: Compute, new: Instead) -> Program:
    def go(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        out: list[Statement] = []
        for s in body:
            if s is old:
                out.extend(new)
            else:
                out.append(map_bodies(s, go))
        return tuple(out)

    return msgspec.structs.replace(program, body=go(program.body))
