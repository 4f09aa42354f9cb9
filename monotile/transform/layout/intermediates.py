"""Finds the tensors whose layout a Program may choose, and groups of them that need equal layouts."""

from collections.abc import Iterator

from monotile.ir.expr import Tensor
from monotile.ir.program import Branch, Compute, Loop, Program, Scatter, statements


def intermediates(program: Program, inside: frozenset[str] = frozenset()) -> dict[str, Tensor]:
    """Intermediate tensors, whose layout is free, by name. inside: results whose layout is free, too."""
    out: dict[str, Tensor] = {}
    fixed = {t.name for t in program.outputs} - inside
    for s in statements(program.body):
        match s:
            case Compute():
                out[s.out.name] = s.out
            case Scatter():
                fixed |= {s.base.name, s.out.name}
            case Loop():
                out |= {t.name: t for c in s.carried for t in (c.param, c.out)}
                out |= {k.out.name: k.out for k in s.stacked}
            case Branch():
                fixed |= {t.name for o in s.outs for t in (o.then, o.otherwise, o.out)}
    return {name: t for name, t in out.items() if name not in fixed}


def tied(program: Program) -> Iterator[tuple[tuple[Tensor, int], ...]]:
    """Groups of tensors that must have equal layouts, from a dimension on."""
    for s in statements(program.body):
        if isinstance(s, Loop):
            yield from (((c.init, 0), (c.param, 0), (c.result, 0), (c.out, 0)) for c in s.carried)
            yield from (((k.value, 0), (k.out, 1)) for k in s.stacked)
