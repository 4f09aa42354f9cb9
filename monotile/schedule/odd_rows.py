"""Longer rows for operands of products (`transform/layout/pad_rows.py`), where the cost model finds the whole schedule faster with them."""

import functools

from monotile.analysis.states import old_values
from monotile.choice.digest import digest_program, digest_statements
from monotile.ir.program import Compute, Program, statements
from monotile.kernels.draft import Context
from monotile.kernels.registry import tiled
from monotile.schedule.tree import build, seconds
from monotile.targets.target import Target
from monotile.transform.layout.odd_rows import components, odd_product
from monotile.transform.layout.pad_rows import pad_rows


def pad_odd_rows(program: Program, target: Target, context: Context) -> Program:
    """`program` with longer rows for the operands of tiled products, of all those at once that share one."""
    fixed = old_values(program) | frozenset(program.watched)
    found = [
        (s, p)
        for s in statements(program.body)
        if isinstance(s, Compute)
        and (p := odd_product(s, target)) is not None
        and not fixed & {rows.tensor.name for rows in p.rows.values()}
        and tiled(s, context)
    ]
    made = {p.name: s for s, p in found}
    for group in components(program, [p for _, p in found]):
        # Names stay, but a product of another group may have become longer itself.
        now = {s.out.name: s for s in statements(program.body) if isinstance(s, Compute)}
        if any(now.get(p.name) != made[p.name] for p in group):
            continue
        longer = pad_rows(program, group)

        def cost(way: bool, before: Program = program, after: Program = longer) -> float:
            return seconds(build(after if way else before, context), target)

        if context.whether(
            "pad rows",
            cost,
            shape=functools.partial(
                digest_statements, [made[p.name] for p in group], context.tables
            ),
            around=functools.partial(digest_program, program, 0),
        ):
            program = longer
    return program
