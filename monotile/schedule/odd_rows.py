"""Pads the rows of product operands whose length prevents vector copies (`transform/layout/pad_rows.py`), where the cost model predicts
a faster schedule."""

from collections.abc import Sequence

import msgspec

from monotile.analysis.states import old_values
from monotile.ir.program import Compute, Program, statements
from monotile.kernels.draft import Context
from monotile.kernels.registry import match, tiled
from monotile.schedule.tree import faster
from monotile.targets.target import Target
from monotile.transform.layout.odd_rows import OddProduct, components, odd_product
from monotile.transform.layout.pad_rows import pad_rows

SMALL = 1 / 8  # fraction of the larger operand's size


def pad_odd_rows(program: Program, target: Target, context: Context) -> Program:
    """`program` with padded rows for operands of tiled products; all operands that share a product are padded together. Attention is
    left alone, since its second product reads an operand that is not in memory."""
    made = _computes(program)
    fixed = old_values(program) | frozenset(program.watched)
    found = [
        p
        for s in made.values()
        if (p := odd_product(s, target)) is not None
        and not fixed & {rows.tensor.name for rows in p.rows.values()}
        and tiled(s, context)
        and match(s, made, context) is None
    ]
    for group in components(program, found):
        now = _computes(program)  # an earlier group may have changed a product's columns
        products = [now[p.name] for p in group]
        odd = [p for s in products if (p := odd_product(s, target))]
        before, program = program, faster("pad rows", program, pad_rows(program, odd), products, context)  # fmt: skip
        if program is before and (small := _small(odd)):
            program = faster("pad small rows", program, pad_rows(program, small), products, context)
    return program


def _small(odd: Sequence[OddProduct]) -> list[OddProduct]:
    """If the operands differ very much in size, the small ones, whose padded copies are cheap; else none."""
    out: list[OddProduct] = []
    for p in odd:
        least = SMALL * max(x.tensor.size for x, _ in p.odd)
        small = tuple((x, rows) for x, rows in p.odd if x.tensor.size <= least)
        if small:
            out.append(msgspec.structs.replace(p, odd=small))
    return out


def _computes(program: Program) -> dict[str, Compute]:
    return {s.out.name: s for s in statements(program.body) if isinstance(s, Compute)}
