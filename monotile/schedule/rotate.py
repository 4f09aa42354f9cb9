"""Loop rotation: the first stages of an iteration move to the end of the one before.

A layer that begins with a normalisation of the residual stream costs two stages, one on each side of the loop's back edge, though both work
row by row. After rotation the loop carries the normalised value as well as the sum, and the two are one stage:

loop l:  y = norm(x, l); x' = x + f(y)    becomes    y0 = norm(x0, 0); loop l:  x' = x + f(y); y' = norm(x', l + 1)

The last iteration computes a value for one that does not come: it reads the last layer's weights again, and the result is not used.
"""

import functools
from collections.abc import Mapping

import msgspec

from monotile.analysis.in_place import carried_in_place
from monotile.analysis.states import old_values
from monotile.choice.digest import digest_program, digest_statements
from monotile.ir.expr import Axis, Expr, Load, Tensor, add, binary, idx, map_loads, substitute
from monotile.ir.program import (
    Carry,
    Compute,
    Loop,
    Program,
    Scatter,
    Statement,
    defined,
    statements,
    used,
)
from monotile.kernels.draft import Context, Draft
from monotile.kernels.registry import tiled
from monotile.schedule.split import split_reductions
from monotile.schedule.tree import Nest, Tree, build, nests_of, seconds
from monotile.targets.target import Target
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, with_body
from monotile.transform.simplify.dce import eliminate_dead_code


def rotate_loops(program: Program, target: Target, context: Context) -> Program:
    """`program` with those loops rotated for which the cost model predicts a faster schedule."""
    tried: set[str] = set()
    while True:
        tree = build(program, context)
        nest = next((n for n in nests_of(tree) if n.loop.axis.name not in tried), None)
        if nest is None:
            return program
        tried.add(nest.loop.axis.name)
        program = _tried(program, tree, nest, target, context)


def _tried(program: Program, tree: Tree, nest: Nest, target: Target, context: Context) -> Program:
    """`program` with the loop of `nest` rotated by one of its stages, if that makes it faster."""
    states = old_values(program)
    for draft in nest.body:
        if not isinstance(draft, Draft) or not _begins(draft, nest.loop, states, context):
            continue
        # A product whose parts are added up by what follows it may now be worth its split. Other products were tried before.
        inside = frozenset(t.name for s in statements(nest.loop.body) for t in defined(s))
        moved = _rotated(program, nest.loop, draft.group.tensors)
        rotated = split_reductions(moved, target, context, inside)

        def cost(rotate: bool, other: Program = rotated) -> float:
            return seconds(build(other, context) if rotate else tree, target)

        place = functools.partial(_place, program, nest.loop, draft.group.tensors, context)
        if context.whether(
            "rotate", cost, shape=place, around=functools.partial(place, whole=True)
        ):
            return rotated
    return program


def _place(
    program: Program, loop: Loop, names: frozenset[str], context: Context, *, whole: bool = False
) -> str:
    """The statements to move and their loop, by a digest of the loop or of the whole Program."""
    moved = [k for k, s in enumerate(loop.body) if {t.name for t in defined(s)} & names]
    if whole:
        return digest_program(program, [*statements(program.body)].index(loop), moved)
    return digest_statements((loop,), context.tables, moved)


def _begins(draft: Draft, loop: Loop, states: frozenset[str], context: Context) -> bool:
    """Whether the stage depends only on the iteration before and has no products. Tensors that are overwritten are read in place."""
    overwritten = states | {c.param.name for c in carried_in_place(loop)}
    made = {t.name for s in loop.body for t in defined(s)}
    kept = {c.result.name for c in loop.carried} | {k.value.name for k in loop.stacked}
    kept |= {s.base.name for s in loop.body if isinstance(s, Scatter)}  # updated in place, here
    params = {c.param.name for c in loop.carried}
    group = draft.group
    return (
        loop.axis.extent > 1
        and not loop.ends_early
        and bool(group.reads & params)
        and not group.reads & (made | overwritten)
        and not group.waits
        and not group.tensors & kept
        and all(isinstance(s, Compute) and not tiled(s, context) for s in group.statements())
    )


def _rotated(program: Program, loop: Loop, names: frozenset[str]) -> Program:
    """`program` with the Computes `names` of the loop's body moved one iteration ahead."""
    fresh = Names(program)
    moved = [s for s in loop.body if isinstance(s, Compute) and s.out.name in names]
    rest = [s for s in loop.body if not any(s is m for m in moved)]
    wanted = {t.name for s in rest for t in used(s)}
    last = binary("min", add(loop.axis, idx(1)), idx(loop.axis.extent - 1))
    first = _copies(moved, {c.param.name: c.init for c in loop.carried}, loop.axis, idx(0), fresh)
    ahead = _copies(moved, {c.param.name: c.result for c in loop.carried}, loop.axis, last, fresh)
    carried = tuple(
        Carry(
            a.out,
            s.out,
            b.out,
            msgspec.structs.replace(s.out, name=fresh.fresh(f"{s.out.name}_over")),
        )
        for s, a, b in zip(moved, first, ahead, strict=True)
        if s.out.name in wanted
    )
    new = msgspec.structs.replace(loop, carried=(*loop.carried, *carried), body=(*rest, *ahead))

    def go(body: Body) -> Body:
        out: list[Statement] = []
        for s in body:
            out += [*first, new] if s is loop else [map_bodies(s, go)]
        return tuple(out)

    return eliminate_dead_code(with_body(program, go(program.body)))


def _copies(
    moved: list[Compute], given: Mapping[str, Tensor], axis: Axis, value: Expr, fresh: Names
) -> list[Compute]:
    """`moved` under other names, for the iteration `value`, with `given` in place of carried tensors."""
    renamed = dict(given)

    def now(t: Tensor | None) -> Tensor | None:
        return None if t is None else renamed.get(t.name, t)

    out: list[Compute] = []
    for s in moved:
        tensor = msgspec.structs.replace(s.out, name=fresh.fresh(s.out.name))
        body = map_loads(
            substitute(s.body, {axis.name: value}),
            lambda x: Load(renamed.get(x.tensor.name, x.tensor), x.index),
        )
        live = tuple(
            msgspec.structs.replace(x, first=now(x.first), last=now(x.last)) for x in s.live
        )
        out.append(msgspec.structs.replace(s, out=tensor, body=body, live=live))
        renamed[s.out.name] = tensor
    return out
