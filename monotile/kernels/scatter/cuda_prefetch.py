"""Loads the operands of several terms before any is used.

A branch between two loads, such as that of an index check, makes a thread wait for the first before it issues the second: ptxas moves a
load down to its use, after all branches that do not depend on it. So the indices of several terms are checked together, in one branch
that depends on all of them.
"""

from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager

from monotile.analysis.unconditional import TRUE, executed
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.codegen.writer import Block
from monotile.ir.expr import Axis, Expr, Load, Tensor, axes_of, loads
from monotile.ir.intervals import interval

Names = Mapping[Hashable, str]
Place = tuple[Expr, int, Tensor]  # a data-dependent index, its extent, and the indexed tensor


def write_fetch(e: VectorEmitter, bodies: Sequence[Expr], name: str, read: str) -> Names:
    """Writes the functor `name`, which loads for a term the operands that `bodies` read unconditionally, without gathers, and for all
    features alike. Returns their names within its result `read`."""
    found = dict.fromkeys(x for body in bodies for x in executed(body))
    wanted = {x: TRUE for x in found if _alike(x) and not any(loads(i) for i in x.index)}
    with e.writer.open(f"auto {name} = [&](idx e)", ["e"], fence=True, tail=";"):
        return e.held(wanted, 1, read)


def _alike(e: Expr) -> bool:
    """Whether `e` is the same for all features of a term."""
    return all(a.name != "at" for a in axes_of(e))


def unchecked(e: VectorEmitter, i: Expr, extent: int, right: str) -> Expr:
    """The index `i` as an expression without Loads. right: text that precedes the test whether it is in range; the test is left out where
    the range is known."""
    if not loads(i):
        return i
    w, name = e.writer, e.writer.fresh("k")
    w.write(f"const int64_t {name}_wide = {bare(e.root(i))};")
    span = interval(i)
    if span is None or not (span.lo >= 0 and span.hi < extent):
        w.write(f"{right}(uint64_t){name}_wide < {extent}u;")
    w.write(f"const idx {name} = (idx){name}_wide;")
    w.define(name)
    return Axis(name, extent)


def write_places(
    e: VectorEmitter, value: Expr, names: Names, count: int
) -> list[tuple[Place, str]]:
    """Writes arrays of `count` checked indices of the unconditional gathers of `value`, from the loaded operands `names`. Returns the
    arrays by index."""
    known = frozenset(x for x in names if isinstance(x, Load))
    found = [
        (i, n, x.tensor)
        for x in executed(value)
        for i, n in zip(x.index, x.tensor.shape, strict=True)
        if loads(i) and _alike(i) and known.issuperset(loads(i))
    ]
    w = e.writer
    places = [(place, w.fresh("place")) for place in dict.fromkeys(found)]
    if not places:
        return []
    w.write("bool right = true;")
    for _, name in places:
        w.write(f"idx {name}[{count}];")
    with turns(e, "u", count, fence=True) as block:
        block.names.update(names)
        _write_term(e)
        for (i, extent, _), name in places:
            at = unchecked(e, i, extent, "right &= ")
            w.write(f"{name}[u] = {bare(e.index(at))};")
    with w.open("if (!right)", fence=True), turns(e, "u", count, fence=True) as block:
        block.names.update(names)
        _write_term(e)
        for (i, extent, tensor), _ in places:
            e.position(i, extent, tensor)
    return places


def _write_term(e: VectorEmitter) -> None:
    e.writer.write("const idx e = number[u];")
    e.writer.define("e")


def place_names(e: VectorEmitter, places: Sequence[tuple[Place, str]]) -> None:
    """Within the current block, uses element `u` of these arrays as the indices."""
    for (i, extent, tensor), name in places:
        variable = e.writer.fresh("k")
        e.writer.write(f"const idx {variable} = {name}[u];")
        e.writer.define(variable)
        e.writer.block.names["position", i, extent, tensor.name] = variable


@contextmanager
def turns(e: VectorEmitter, name: str, count: int, *, fence: bool = False) -> Generator[Block]:
    """An unrolled loop."""
    head = f"for (int {name} = 0; {name} < {count}; ++{name})"
    with e.writer.open(head, [name], fence=fence) as block:
        block.pragma = "#pragma unroll"
        yield block
