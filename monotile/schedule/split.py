"""Splits reductions (split-K): a product with few outputs and a long K becomes partial sums, computed by more tasks.

out = sum over k of body  becomes  parts[s, ...] = sum over the k of part s, out = parts[0, ...] + parts[1, ...] + ...
The second sum is pointwise. It joins the stage that uses `out`, so it costs no extra barrier where a reduction (a normalisation, say)
follows. Its order is fixed, so results are bit-reproducible.

A long reduction to one or a few values (whether any element is infinite, a mean of everything) would be one task. It is split in the same
way, and each reader computes what it needs of the few values; or the partial results are computed in the tasks that compute the terms
(`gather.py`).

The reduction of an image to a value for each channel (pooling) is split by rows of the image, so that a task can compute a row and
reduce it.
"""

import functools
import math
from collections.abc import Iterator

import msgspec

from monotile.analysis.dependence import loads_of
from monotile.choice.digest import digest_program, digest_statements
from monotile.choice.spec import Value
from monotile.ir.expr import loads
from monotile.ir.program import Branch, Compute, Program, Scatter, Statement, statements
from monotile.kernels.draft import Context
from monotile.kernels.group import single
from monotile.kernels.registry import tiled
from monotile.plan.streams import streams
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
MUCH = 1 << 13  # terms of a reduction to few results that is split among tasks
LEAST, MOST_ROWS = 1 << 15, 1024  # elements of an image that is reduced row by row, and its rows
Instead = (
    tuple[Compute, Compute] | tuple[Compute, Scatter, Compute]
)  # the last one has the old name
CHUNK = 128  # a part's share of K has so many terms at least, and is a multiple of this unless weights are streamed
LINE = 32  # and its share of a convolution's channels of this


def split_reductions(
    program: Program,
    target: Target,
    context: Context | None = None,
    within: frozenset[str] | None = None,
) -> Program:
    """`program` with those products split for which the cost model predicts a faster schedule. within: names of the tensors to try; None
    for all."""
    if not target.has.many_workers:  # there are always enough tasks
        return program
    context = context or Context.of(program, target)
    branches = any(isinstance(s, Branch) for s in statements(program.body))
    for _ in range(ROUNDS if branches else 1):  # another side may be the longest now
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
            continue  # it is itself split, perhaps moved an iteration ahead by a loop, or is a part
        now = _tried(now, c, context)
    return now.program


class _Way:
    """A Program with a Compute in so many parts (1: unsplit), and the seconds of its schedule. worth: whether the Compute itself gets
    faster."""

    def __init__(self, parts: Value, program: Program, context: Context, worth: bool = True):
        self.parts, self.program, self.context, self.worth = parts, program, context, worth

    @functools.cached_property
    def seconds(self) -> float:
        return seconds(build(self.program, self.context), self.context.target)


def _tried(now: _Way, c: Compute, context: Context) -> _Way:
    """`now` with `c` unsplit, or split in the first of the worthwhile ways that makes the whole faster."""
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
    """The alternatives to `c`: the number of parts, the statements, and whether to try it. Splits that make a product itself faster are,
    fastest first; for a reduction to few values the one with the most parts, or the one gathered where its terms are computed."""
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
    streamed = _streams(c, context)
    if not (streamed or tiled(c, context)):
        return
    whole, target = cut(single(c), context), context.target
    # The least that a split has to save: along one axis nothing, as the whole schedule is compared; for windows, of which a network has
    # many, a barrier.
    margin = target.barrier_seconds if len(c.reduce) > 1 else 0.0
    found: list[tuple[bool, float, Parts]] = []
    for count in PARTS:
        parts = _shares(c, count, 1 if streamed else CHUNK)
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


def _streams(c: Compute, context: Context) -> bool:
    """Whether `c` is a product whose weights come through the ring."""
    if c.combiner != "sum" or not any(x.tensor.name in context.streamed for x in loads_of(c)):
        return False
    whole = cut(single(c), context)
    return whole is not None and any(map(streams, whole.steps))


def _shares(c: Compute, count: int, chunk: int) -> Parts | None:
    """`count` parts of a product's sums, each of whole chunks; for a convolution, of whole lines of channels. None if it has none."""
    axis = max(range(len(c.reduce)), key=lambda p: c.reduce[p].extent)
    least = chunk if len(c.reduce) == 1 else LINE
    terms = math.prod(a.extent for a in c.reduce)
    if c.reduce[axis].extent % (count * least) or terms < count * CHUNK:
        return None
    return Parts(axis, count)


def _by_rows(c: Compute, context: Context) -> bool:
    """Whether `c` reduces images row by row, with many terms for each result and fewer results than threads."""
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
    """The partial results, and the statement that combines them under the old name."""
    first = partial(c, parts)
    return first, combined(c, first.out)


def _by_readers(program: Program, parts: str) -> Program:
    """`program` with the small element-wise statements that read the tensor `parts` inlined into their readers."""

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
