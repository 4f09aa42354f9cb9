"""Candidates for cutting a product into tasks: blocks of rows and columns, ranked by the cost model (Roller)."""

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from monotile.analysis.contraction import factors
from monotile.analysis.reuse import footprint
from monotile.choice.digest import digest
from monotile.choice.spec import Value
from monotile.ir.expr import Axis, CountTensor, loads
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common import cost
from monotile.kernels.common.moments import moments
from monotile.kernels.common.product import Product, product_of
from monotile.kernels.common.register_rows import row_work
from monotile.kernels.common.rowwise import Rowwise
from monotile.kernels.draft import Context, Draft
from monotile.kernels.group import Group
from monotile.kernels.matmul import cost as product_cost
from monotile.kernels.matmul.blocks import (
    Way,
    cut_key,
    followed,
    scratch_bytes,
    ways,
    within_run,
)
from monotile.kernels.matmul.gate import Gate, as_gate, products_of, takes_several
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.matmul.problem import Memory, Problem, Size
from monotile.kernels.matmul.regions import cpu_region, cpu_regions, traffic_seconds
from monotile.kernels.matmul.rows import (
    Share,
    finish_seconds,
    finished_rows,
    shares,
    with_rows,
)
from monotile.kernels.matmul.words import word_regions
from monotile.plan.nodes import Dim, Step
from monotile.targets.target import Target

LEAST_COLUMNS = 16  # of a block
EVEN = 8  # rows or columns of which a task has whole groups, for vectors of results and copies
LIVE_TERMS = 8  # terms for each that is assumed live, where a call decides how many are
LIVE_ROWS = 4  # the same for rows, or columns, that data select

# A way to cut a product: seconds of the stage, method, its on-chip bytes, tile of rows and columns, how lanes share its rows of sums.
Choice = tuple[float, Matmul, int, tuple[int, int], Share | None]


def tiled(c: Compute, context: Context) -> bool:
    """Whether `c` is a product worth separate tiles."""
    return product_of(c, context) is not None


def cut(group: Group, context: Context) -> Iterator[Draft]:
    """The best draft of a group that begins with a product and has an element-wise or row-wise epilogue, or is a gate; none otherwise, or
    if there is no way."""
    gate, target = group.match if isinstance(group.match, Gate) else None, context.target
    anchor = gate.sums[0] if gate else group.steps[0][0]
    if not isinstance(anchor, Compute):
        return
    p = products_of(gate, context) if gate else product_of(anchor, context)
    if p is None:
        return
    found = finished_rows(group, p, target) if len(group.steps) > 1 else gate
    if found is None and len(group.steps) > 1:
        return
    best = _best_choice(anchor, p, tuple(group.statements()), found, context)
    if best is None:
        return
    seconds, method, scratch, tiles, share = best
    dims = _product_dims(anchor, p, tiles, target, len(gate.sums) if gate else 1)
    by_axis = sorted(dims, key=lambda d: d.stage or 0)
    grid = tuple(-(-d.extent // d.tile) for d in by_axis)
    method = last_dims(method, dims, p)
    names = tuple(s.out.name for s in group.statements())
    if isinstance(found, Gate):
        method = as_gate(method, len(found.sums))
    elif found is not None and share is not None:
        method, names = with_rows(method, found, share, target), found.listed
    done = Step(names, dims, method, scratch=0, scratch_bytes=scratch)
    yield Draft(group, grid, (done,), {}, scratch, seconds)


def _best_choice(
    anchor: Compute,
    p: Product,
    statements: tuple[Compute | Scatter, ...],
    found: Rowwise | Gate | None,
    context: Context,
) -> Choice | None:
    """The fastest way to cut the product with its epilogue; None if there is none. found: the rows of a row-wise epilogue, or the gate."""
    problem = _problem(anchor, p, statements, found, context)
    if problem is None:
        return None
    key = _key(problem)

    def best() -> Choice | None:
        return context.choose(
            "blocks",
            _choices(problem, context),
            shape=lambda: digest(key),
            cost=lambda way: way[0] + traffic_seconds(problem, way[1], way[3], context.target),
            value=lambda way: (
                value_of(way[1]) | {"tiles": way[3]} | ({"lanes": way[4].lanes} if way[4] else {})
            ),
        )

    return context.memo.once(("matmul", *key), best)


def _problem(
    anchor: Compute,
    p: Product,
    statements: tuple[Compute | Scatter, ...],
    found: Rowwise | Gate | None,
    context: Context,
) -> Problem | None:
    """The step as a problem, whose rows and columns are those of a run where it has runs: these are batches then. None for an empty one."""
    m, n = (math.prod(anchor.axes[a].extent for a in side) for side in (p.m, p.n))
    k = math.prod(anchor.reduce[a].extent for a in p.k)
    batches = math.prod(_usual(anchor, anchor.axes[a]) for a in p.batch)
    if 0 in (m, n, k, batches):
        return None
    runs = m // (p.grain_m or m) * (n // (p.grain_n or n))
    terms = max(1, k // LIVE_TERMS) if p.bounded else k
    m, n = (
        x // LIVE_ROWS or 1 if _selected(anchor, side) else x for x, side in ((m, p.m), (n, p.n))
    )
    products = len(found.sums) if isinstance(found, Gate) else 1
    size = Size(p.grain_m or m, (p.grain_n or n) * products, terms, batches * runs)
    common = context.target.model.common
    stored = next(s.out.dtype.itemsize for s in reversed(statements) if isinstance(s, Compute))
    memory = _from_memory(anchor, p, products, context.target)
    if isinstance(found, Rowwise):
        numbers = [anchor.axes[a] for a in p.m]
        work = row_work(found, len(moments(found)), common.transcendental, numbers)
        return Problem(p, size, 0.0, stored, memory, work, found.span[-1])
    operations = product_cost.finishing(statements, common.after_plain, common.after_costly)
    tiles = context.target.has.register_tiles
    read = Memory(*_operand_bytes(anchor, p, products)) if tiles else Memory(0, 0)
    return Problem(p, size, operations, stored, memory, products=products, read=read)


def _usual(c: Compute, axis: Axis) -> int:
    """The typical live extent of an axis."""
    live = c.live_along(axis)
    count = None if live is None else live.prefix
    return count.usual if isinstance(count, CountTensor) else axis.extent


def _selected(c: Compute, side: Sequence[int]) -> bool:
    """Whether data decide how many rows or columns of the product are live."""
    live = (c.live_along(c.axes[a]) for a in side)
    return any(x is not None and x.prefix is not None and not x.known for x in live)


def _key(problem: Problem) -> tuple[object, ...]:
    """A key of all inputs of `_choices`."""
    p, size = problem.product, problem.size
    epilogue = (problem.operations, problem.stored, *([problem.products] * (problem.products > 1)))
    operands = (problem.memory, problem.read)
    key = (*cut_key(p, size), p.grain_m, p.grain_n, size.batches, *epilogue, *operands)
    return key if problem.rows is None else (*key, problem.rows, problem.last)


def value_of(c: Matmul) -> dict[str, Value]:
    """A value that distinguishes a way to cut a product from others."""
    return {"method": msgspec.to_builtins(c)}


def _from_memory(c: Compute, p: Product, products: int, target: Target) -> Memory:
    """Operands that are larger than the last-level cache."""
    sides = _operand_bytes(c, p, products, whole=True)
    kept = target.l2_bytes * target.model.common.kept
    return Memory(*(nbytes if nbytes > kept else 0 for nbytes in sides))


def _choices(problem: Problem, context: Context) -> Iterator[Choice]:
    """The ways to cut the product. A block that cannot be faster than the best is skipped, unless all are wanted; those that may be the
    fastest are tried first."""
    p, size, target, several = problem.product, problem.size, context.target, problem.products
    out = product_cost.store_seconds(problem.results, problem.stored, p.dtype.itemsize, target)
    fitting = [
        way
        for way in ways(p, size, context)
        if way.nbytes <= target.shared_bytes
        and not (p.bounded and _beyond_run(way.method, p))
        and (several == 1 or takes_several(way.method, several, p.dtype.itemsize, target))
    ]
    least = [
        out + way.floor.least(_rounds(size, c, (c.block_m, c.block_n), target))
        for way in fitting
        for c in (way.method,)
    ]
    found: dict[int, list[Choice]] = {}
    best = math.inf
    for number in sorted(range(len(fitting)), key=least.__getitem__):
        if least[number] > best * cost.ROUNDING:
            break
        found[number] = list(_choices_of(fitting[number], problem, out, target))
        if not context.chooser.wants_all:
            best = min((best, *(choice[0] for choice in found[number])))
    for number in sorted(found):  # the first of equals is the same in any order of trials
        yield from found[number]


def _choices_of(way: Way, problem: Problem, out: float, target: Target) -> Iterator[Choice]:
    """The ways to cut the product in these blocks. out: seconds in which the results are stored."""
    p, size, c = problem.product, problem.size, way.method
    block = way.block
    if block.target is not target:  # as many workers, but for the first of them
        block = msgspec.structs.replace(block, target=target)
    for tile, share, after in _finished(problem, c, target):
        rounds = _rounds(size, c, tile, target)
        if c.teams > 1 and rounds <= 1:
            continue
        method, scratch = c, way.nbytes
        if rounds > 1 and not p.bounded:
            method = followed(c, size.k, p.dtype.itemsize, target)
            scratch = scratch_bytes(method, p.dtype.itemsize, target)
        task = Size(*tile, size.k)
        seconds = product_cost.rounds_seconds(block, method, problem, task, rounds, after)
        yield seconds + out, method, scratch, tile, share


def _beyond_run(c: Matmul, p: Product) -> bool:
    """Whether a block has more rows or columns than a task may have, although a smaller block is possible."""
    rows, columns = (cost.round_up(g, least) for g, least in ((p.grain_m, 64), (p.grain_n, EVEN)))
    return c.runs == 1 and bool(
        (rows and c.block_m > rows) or (columns and c.block_n > max(columns, LEAST_COLUMNS))
    )


def _finished(
    problem: Problem, c: Matmul, target: Target
) -> Iterator[tuple[tuple[int, int], Share | None, float]]:
    """The regions of tasks by the method `c`, each with its epilogue: how lanes share rows, and the seconds."""
    p, size, work = problem.product, problem.size, problem.rows
    if work is None:
        for tile in regions(p, size, c, target, EVEN * problem.products):
            task = Size(*tile, size.k)
            yield tile, None, product_cost.epilogue_seconds(problem, task, target)
        return
    columns = cost.round_up(size.n, EVEN)
    if columns > c.block_n or c.runs > 1:
        return
    threads = target.threads // c.teams
    for rows in dict.fromkeys(tile[0] for tile in regions(p, size, c, target)):
        ways = [
            (finish_seconds(work, share, rows, threads, target), share)
            for share in shares(work, problem.last, threads, rows)
        ]
        if ways:
            seconds, share = min(ways)
            yield (rows, columns), share, seconds


def _rounds(size: Size, method: Matmul, tile: tuple[int, int], target: Target) -> int:
    """The largest number of tasks of a worker."""
    tasks = size.batches // method.runs * -(-size.m // tile[0])
    tasks *= -(-size.n * method.runs // tile[1])
    return -(-tasks // target.workers)


def regions(
    p: Product, size: Size, method: Matmul, target: Target, even: int = EVEN
) -> Iterable[tuple[int, int]]:
    """Candidate rows and columns of a task: a block, or less of it where tasks divide these evenly, or more tasks in as many waves. even: a
    task's columns are a multiple."""
    if method.instruction == "words":
        found = word_regions(size, method, target)
        return dict.fromkeys(
            (within_run(m, p.grain_m, target), within_run(n, p.grain_n, target)) for m, n in found
        )
    if target.has.register_tiles:
        cut = method.instruction == "outer"
        found = cpu_regions(size, method, target) if cut else (cpu_region(size, method, target),)
        return dict.fromkeys(
            (within_run(m, p.grain_m, target), within_run(n, p.grain_n, target)) for m, n in found
        )
    tile_m = within_run(method.block_m, p.grain_m, target)
    tile_n = method.block_n if method.runs > 1 else within_run(method.block_n, p.grain_n, target)
    found = [(tile_m, tile_n)]
    if p.grain_m or p.grain_n or method.runs > 1:
        return found
    rows, columns = -(-size.m // tile_m), -(-size.n // tile_n)
    waves = -(-size.batches * rows * columns // target.workers)
    room = max(rows * columns, waves * target.workers // size.batches)  # for tasks of a batch
    for down, across in ((rows, columns), (room // columns, columns), (rows, room // rows)):
        fewer_rows = min(tile_m, cost.round_up(-(-size.m // down), EVEN))
        fewer_columns = min(tile_n, cost.round_up(-(-size.n // across), even))
        found.append((fewer_rows, fewer_columns))
    return dict.fromkeys(found)


def _product_dims(
    c: Compute, p: Product, tiles: tuple[int, int], target: Target, products: int
) -> tuple[Dim, ...]:
    """The dims: batches, rows, columns. Consecutive tasks have the same rows; or the same columns, if the columns' operand would otherwise
    be read from memory again for each of them."""
    batch = tuple(Dim((a,), c.axes[a].extent, 1, i) for i, a in enumerate(p.batch))
    extents = [math.prod(c.axes[a].extent for a in axes) for axes in (p.m, p.n)]
    tiles = (tiles[0], tiles[1] // products)
    tasks = math.prod(-(-e // t) for e, t in zip(extents, tiles, strict=True))
    order = [0, 1]
    if not target.has.register_tiles and tasks > target.workers:
        rows, columns = _operand_bytes(c, p, products)
        if columns > max(rows, target.l2_bytes * target.model.common.kept):
            order = [1, 0]
    sides = (
        Dim(axes, extent, tile, len(batch) + at)
        for axes, extent, tile, at in zip((p.m, p.n), extents, tiles, order, strict=True)
    )
    return (*batch, *sides)


def _operand_bytes(
    c: Compute, p: Product, products: int, *, whole: bool = False
) -> tuple[int, int]:
    """Bytes of both operands, of one batch or as a whole. products: as many right ones."""
    extents = {a.name: a.extent for a in (*c.axes, *c.reduce)}
    if not whole:
        extents |= {c.axes[a].name: 1 for a in p.batch}
    left, right = (
        sum(footprint(x, extents) for x in set(loads(factor)))
        for factor in factors(c, swapped=p.swapped)
    )
    return left, right * products


def last_dims(c: Matmul, dims: tuple[Dim, ...], p: Product) -> Matmul:
    """`c` of a step whose last two dims are its sides."""
    return msgspec.structs.replace(c, m=len(dims) - 2, n=len(dims) - 1, swapped=p.swapped)
