"""Finds where the rows of rolled loops' stacks are computed: in which loops, and in which of their iterations."""

from collections.abc import Iterator, Mapping
from itertools import product

import msgspec

from monotile.analysis.rows import copied_row
from monotile.ir.expr import Axis, Binary, Const, Expr, Tensor, add, binary, idx, mul
from monotile.ir.program import Compute, Loop, Stack, defined
from monotile.transform.rewrite import Body


class Stacked(msgspec.Struct, frozen=True):
    """The stack `name` holds a value of iterations of the loops from number `depth` on. at: the iteration of each loop; None: the one
    that the next of its leading dimensions counts."""

    name: str
    depth: int
    at: tuple[int | None, ...]


class Made(msgspec.Struct, frozen=True):
    """A tensor that is `value` in iteration `at` of `loops`, outermost first; the tensor itself if there are none."""

    value: Tensor
    loops: tuple[Loop, ...] = ()
    at: tuple[int, ...] = ()


def made(body: Body, tensor: Tensor) -> Made | None:
    """How `body` computes `tensor`; None where a loop that may end early is involved."""
    stacks = _stacks(body)
    makers = {t.name: s for s in body for t in defined(s)}
    s = makers.get(tensor.name)
    found = copied_row(s) if isinstance(s, Compute) else None
    if found is None or found[0].name not in stacks:
        return None if tensor.name in stacks or s is None else Made(tensor)
    index = _numbers(found[1])
    return None if index is None else _row(stacks[found[0].name], index)


def _row(stacked: tuple[Loop, Stack], index: tuple[int, ...]) -> Made | None:
    """How row `index` of a stack is computed."""
    loop, stack = stacked
    first, *rest = index
    deeper = _stacks(loop.body)
    if loop.ends_early or (rest and stack.value.name not in deeper):
        return None
    if rest:
        inner = _row(deeper[stack.value.name], tuple(rest))
    else:
        inner = made(loop.body, stack.value)
    return inner and Made(inner.value, (loop, *inner.loops), (first, *inner.at))


def stacks_of(value: Tensor, loops: tuple[Loop, ...]) -> tuple[Stacked, ...]:
    """All stacks that come out of `loops`, outermost first, whose innermost loop computes `value`."""
    out: list[Stacked] = []
    known: dict[str, tuple[int | None, ...]] = {value.name: ()}
    for depth in reversed(range(len(loops))):
        now = {k.out.name: (None, *known[k.value.name]) for k in loops[depth].stacked if k.value.name in known}  # fmt: skip
        out += [Stacked(name, depth, at) for name, at in now.items()]
        known = dict(now)
        for s in loops[depth - 1].body if depth else ():
            found = copied_row(s) if isinstance(s, Compute) else None
            index = None if found is None or found[0].name not in now else _numbers(found[1])
            if found is not None and index is not None:
                (name,) = (t.name for t in defined(s))
                given = iter(index)
                known[name] = tuple(next(given, None) if i is None else i for i in now[found[0].name])  # fmt: skip
    return tuple(out)


def _numbers(index: tuple[Expr, ...]) -> tuple[int, ...] | None:
    found = tuple(int(i.value) for i in index if isinstance(i, Const))
    return found if len(found) == len(index) else None


def _stacks(body: Body) -> dict[str, tuple[Loop, Stack]]:
    return {k.out.name: (s, k) for s in body if isinstance(s, Loop) for k in s.stacked}


def affine(axes: tuple[Axis, ...], rows: Mapping[tuple[int, ...], tuple[int, ...]]) -> tuple[Expr, ...] | None:  # fmt: skip
    """A tuple of expressions in `axes`, constants and multiples of axes, that equals the value of `rows` in each iteration, its key;
    None if there is none."""
    origin = rows[(0,) * len(axes)]
    steps = list[list[int]]()
    for k, axis in enumerate(axes):
        one = rows[tuple(int(p == k) for p in range(len(axes)))] if axis.extent > 1 else origin
        steps.append([b - a for a, b in zip(origin, one, strict=True)])
    for at in product(*(range(x.extent) for x in axes)):
        moved = (sum(step[d] * i for step, i in zip(steps, at, strict=True)) for d in range(len(origin)))  # fmt: skip
        if tuple(a + m for a, m in zip(origin, moved, strict=True)) != rows[at]:
            return None
    out = []
    for d, start in enumerate(origin):
        e: Expr = idx(start)
        for step, axis in zip(steps, axes, strict=True):
            if step[d]:
                term: Expr = axis if step[d] == 1 else mul(axis, idx(step[d]))
                e = term if e == idx(0) else add(term, e)
        out.append(e)
    return tuple(out)


def value_of_index(e: Expr, at: Mapping[str, int]) -> int | None:
    """The value of an index where axes are `at`; None where it depends on anything else."""

    def go(x: Expr) -> Expr:
        match x:
            case Axis() if x.name in at:
                return idx(at[x.name])
            case Binary():
                return binary(x.op, go(x.a), go(x.b))
            case _:
                return x

    found = go(e)
    return int(found.value) if isinstance(found, Const) else None


def iterations(loop: Loop, at: Mapping[str, int]) -> Iterator[dict[str, int]]:
    return ({**at, loop.axis.name: i} for i in range(loop.axis.extent))
