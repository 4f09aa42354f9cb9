"""Maps on CUDA, with their prefetches: of a later step at the stage's beginning, or of several iterations at once."""

from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from monotile.analysis.uniform import fold_uniform
from monotile.codegen.packs import LANE, lane_of
from monotile.codegen.site import Site
from monotile.codegen.thread_map import ThreadMap
from monotile.codegen.vector import VectorEmitter
from monotile.codegen.writer import Block
from monotile.ir.expr import Axis, Expr, Load, Select, add, idx, loads, mul, substitute
from monotile.ir.program import Compute, expressions
from monotile.kernels.common.cost import LINE
from monotile.kernels.common.cuda_fetches import Fetch, held_now, look_up
from monotile.kernels.common.cuda_prefetch import (
    always_there,
    looked_up,
    read_at_once,
    read_by,
    safe_loads,
)
from monotile.kernels.common.cuda_threads import inside, placed, region, thread_map, write_element
from monotile.kernels.elementwise.cuda_iterations import Iterations
from monotile.kernels.elementwise.method import Map
from monotile.kernels.elementwise.prefetch import is_large, requested, tensors
from monotile.plan.launch import Ring

X = TypeVar("X", Load, Load | Select)


def write_prefetch(e: VectorEmitter, site: Site, number: int) -> None:
    """Loads a map's operands in memory, of all of the thread's vectors, into the structs `early_number`."""
    method = site.step.method
    assert isinstance(method, Map)
    own, name = thread_map(e, site, method.vector), f"early_{number}"
    at = _at(site, own)
    every = [at(x) for s in (site.anchor, *site.followers) for x in expressions(s)]
    whole = method.ahead("stage", "all")
    wanted = {
        x: when
        for x, when in read_by(every, _safe(e, site, at)).items()
        if not e.computed(x.tensor) and (whole or is_large(x))
    }
    w = e.writer
    with w.open(f"auto fetch_{name} = [&](idx e)", ["e"], fence=True, tail=";"):
        names = held_now(e, wanted, own.width, Fetch(name), unaligned=True)
    turns = Iterations(e, site, own, method.ahead("stage"), [Fetch(name)], _finish(e, site, own, names))  # fmt: skip
    turns.fetch(own.thread)
    e.early[site.step] = partial(turns.compute, own.thread)


def write_supply(e: VectorEmitter, site: Site) -> None:
    """Asks for the lines of large operands, for the supplier."""
    read = (x for s in (site.anchor, *site.followers) for y in expressions(s) for x in loads(y))
    w = e.writer
    for x in requested(read, e.view, (weight.tensor.name for weight in e.program.weights)):
        line = LINE // x.dtype.itemsize
        own = ThreadMap(line, region(site.ranges) // line, 0, Ring.THREADS)
        lane = f"idx e = threadIdx.x % {Ring.THREADS}"
        first = own.element(site.ranges, idx(0))
        with (
            w.open(f"for ({lane}; e < {own.groups}; e += {Ring.THREADS})", ["e"], fence=True),
            inside(e, site.ranges, first),
        ):
            w.write(f"mt::ptx::request({e.address_of(x, placed(site.point, first))});")


def write(e: VectorEmitter, site: Site) -> None:
    """A loop over vectors of neighbours, divided among the threads."""
    method = site.step.method
    assert isinstance(method, Map)
    own = thread_map(e, site, method.vector)
    together = method.ahead("loop")
    if site.step in e.early:
        e.early[site.step]()
    elif not together and (block := _live_block(site, own)):
        with _each_block(e, site, block) as part:
            _write(e, part, thread_map(e, part, method.vector))
    elif together:
        _write_together(e, site, own, together)
    else:
        _write(e, site, own)


def _live_block(site: Site, own: ThreadMap) -> int:
    """The number of neighbours along the partly live last range that all threads process at once for all rows, one vector each; 0 if there
    are no such blocks."""
    if not site.step.bounds or not site.ranges or own.groups <= own.threads:
        return 0
    last = site.ranges[-1]
    rows = own.groups * own.width // last.variable.extent
    block = own.width * max(1, own.threads // rows)
    fits = last.variable.extent % block == 0 and block < last.variable.extent
    return block if fits and last.count != str(last.variable.extent) and not last.first else 0


@contextmanager
def _each_block(e: VectorEmitter, site: Site, block: int) -> Generator[Site]:
    """A loop over the live blocks of `block` neighbours along the last range. Yields the site of each."""
    last, w = site.ranges[-1], e.writer
    number = f"{last.variable.name}_block"
    first = f"{last.low} / {block}" if last.low else "0"
    start = mul(Axis(number, last.variable.extent // block), idx(block))
    text = f"{number} * {block}"
    head = f"for (idx {number} = {first}; {text} < {last.count}; ++{number})"
    with w.open(head, [number], fence=True):
        part = replace(
            last,
            variable=Axis(last.variable.name, block),
            origin=add(last.origin, start),
            count=f"({last.count} - {text})",
            low=f"({last.low} - {text})" if last.low else "",
        )
        moved: dict[str, Expr] = {last.variable.name: add(start, part.variable)}
        yield replace(site, ranges=(*site.ranges[:-1], part), point=placed(site.point, moved))


def _write(e: VectorEmitter, site: Site, own: ThreadMap) -> None:
    with (
        e.writer.open(own.head, ["e"], fence=True) as block,
        inside(e, site.ranges, own.element(site.ranges, idx(0))),
    ):
        _finish(e, site, own, {})(block)


def _write_together(e: VectorEmitter, site: Site, own: ThreadMap, count: int) -> None:
    """Several iterations at once: all their loads are issued before any is used."""
    w, name, at = e.writer, e.writer.fresh("turn"), _at(site, own)
    made, every = site.step.computes, site.step.method.ahead("loop", "all")
    bodies = [at(x) for x in _plain(site)]

    def asked(found: Mapping[X, Expr]) -> dict[X, Expr]:
        return {
            x: when
            for x, when in found.items()
            if not tensors(x) & set(made) and (every or is_large(x))
        }

    with w.open(f"auto fetch_{name} = [&](idx e)", ["e"], fence=True, tail=";"):
        wanted = asked(read_at_once(bodies, _safe(e, site, at)))
        names = held_now(e, wanted, own.width, Fetch(name), unaligned=True)
    # A tensor of the call's sizes ends where they say.
    certain = set[Expr]() if e.sizes else {at(y) for y in always_there(_plain(site))}
    known = looked_up(bodies, certain, own.width)
    fetches, told = look_up(e, known, asked(known.found), own.width, "e")
    if names:
        fetches.insert(0, Fetch(name))
    Iterations(e, site, own, count, fetches, _finish(e, site, own, names | told)).write()


def _finish(
    e: VectorEmitter, site: Site, own: ThreadMap, names: Mapping[Hashable, str]
) -> Callable[[Block], None]:
    """What writes the computation of vector `e` in a block. names: the texts of values that are loaded already, as `held` gives them."""

    def finish(block: Block) -> None:
        block.names.update(e.joined(names))
        point = placed(site.point, own.element(site.ranges, lane_of(own.width)))
        with e.vector(own.width):
            write_element(e, site, point)

    return finish


def _at(site: Site, own: ThreadMap) -> Callable[[Expr], Expr]:
    """What gives an expression at vector `e`."""
    point = placed(site.point, own.element(site.ranges, lane_of(own.width)))
    return lambda x: fold_uniform(substitute(x, point), Axis(LANE, own.width))


def _plain(site: Site) -> list[Expr]:
    return [s.body for s in (site.anchor, *site.followers) if isinstance(s, Compute)]


def _safe(e: VectorEmitter, site: Site, at: Callable[[Expr], Expr]) -> dict[Load, Expr]:
    """`safe_loads` at vector `e`. A tensor of the call's sizes ends where they say."""
    found = {} if e.sizes else safe_loads(_plain(site))
    return {y: at(when) for x, when in found.items() if isinstance(y := at(x), Load)}
