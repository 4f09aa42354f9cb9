"""Maps on CUDA, with their prefetches: of a later step at the stage's beginning, or of several iterations at once."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from monotile.analysis.unconditional import TRUE
from monotile.analysis.uniform import fold_uniform
from monotile.codegen.packs import LANE, lane_of
from monotile.codegen.site import Site
from monotile.codegen.thread_map import ThreadMap
from monotile.codegen.vector import VectorEmitter
from monotile.codegen.writer import Block
from monotile.ir.expr import Axis, Expr, Load, Select, add, idx, mul, substitute
from monotile.ir.program import Compute, expressions
from monotile.kernels.common.cuda_prefetch import always_there, known_ahead, looked_up, read_at_once
from monotile.kernels.common.cuda_threads import inside, placed, thread_map, write_element
from monotile.kernels.elementwise.cuda_iterations import Iterations
from monotile.kernels.elementwise.method import Map
from monotile.kernels.elementwise.prefetch import is_large, tensors

X = TypeVar("X", Load, Load | Select)


def write_prefetch(e: VectorEmitter, site: Site, number: int) -> None:
    """Loads a map's operands in memory into the struct `early_number`."""
    name, method = f"early_{number}", site.step.method
    assert isinstance(method, Map)
    own = thread_map(e, site, method.vector)
    point = placed(site.point, own.element(site.ranges, lane_of(own.width)))
    made = (site.anchor, *site.followers)
    bodies = [substitute(x, point) for s in made for x in expressions(s)]
    wanted = known_ahead(e, bodies)
    w = e.writer
    with w.open(f"auto fetch_{name} = [&](idx e)", ["e"], fence=True, tail=";"):
        names = e.held(wanted, own.width, name, unaligned=True)
    w.write(f"decltype(fetch_{name}(0)) {name}{{}};")
    with (
        w.open(own.head, ["e"], fence=True),
        inside(e, site.ranges, own.element(site.ranges, idx(0))),
    ):
        w.write(f"{name} = fetch_{name}(e);")
    e.early[site.step] = names


def write(e: VectorEmitter, site: Site) -> None:
    """A loop over vectors of neighbours, divided among the threads."""
    method = site.step.method
    assert isinstance(method, Map)
    own = thread_map(e, site, method.vector)
    together = method.ahead("loop")
    if not together and (block := _live_block(site, own)):
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
        block.names.update(e.joined(e.early.get(site.step, {})))
        point = placed(site.point, own.element(site.ranges, lane_of(own.width)))
        with e.vector(own.width):
            write_element(e, site, point)


def _write_together(e: VectorEmitter, site: Site, own: ThreadMap, count: int) -> None:
    """Several iterations at once: all their loads are issued before any is used."""
    w, name = e.writer, e.writer.fresh("turn")
    point = placed(site.point, own.element(site.ranges, lane_of(own.width)))

    def at(x: Expr) -> Expr:
        return fold_uniform(substitute(x, point), Axis(LANE, own.width))

    made, every = site.step.computes, site.step.method.ahead("loop", "all")
    plain = [s.body for s in (site.anchor, *site.followers) if isinstance(s, Compute)]
    bodies = [at(x) for x in plain]

    def asked(found: Mapping[X, Expr]) -> dict[X, Expr]:
        return {
            x: when
            for x, when in found.items()
            if not tensors(x) & set(made) and (every or is_large(x))
        }

    with w.open(f"auto fetch_{name} = [&](idx e)", ["e"], fence=True, tail=";"):
        names = e.held(asked(read_at_once(bodies)), own.width, f"{name}[turn]", unaligned=True)
    arrays, there, place = [name], "", w.fresh("place")
    # A tensor of the call's sizes ends where they say.
    certain = set[Expr]() if e.sizes else {at(y) for y in always_there(plain)}
    known = looked_up(bodies, certain, own.width)
    if places := asked(dict.fromkeys(known.places, TRUE)):
        arrays.append(w.fresh("places"))
        with w.open(f"auto fetch_{arrays[-1]} = [&](idx e)", ["e"], fence=True, tail=";"):
            told = e.held(places, 1, place)
        names |= told
        there = w.fresh("there")
        given = f"const decltype(fetch_{arrays[-1]}(0))& {place}"
        head = f"auto fetch_{there} = [&](idx e, {given})"
        with w.open(head, ["e", place], fence=True, tail=";") as block:
            block.names.update(told)
            names |= e.held(asked(known.found), own.width, f"{there}[turn]")

    def finish(block: Block) -> None:
        if there:
            w.write(f"const auto& {place} = {arrays[-1]}[turn];")
            w.define(place)
        block.names.update(e.joined(names))
        with e.vector(own.width):
            write_element(e, site, point)

    Iterations(e, site, own, count, arrays, there, finish).write()
