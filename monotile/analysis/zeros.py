"""Sparsity patterns: tensors that are zero wherever a mask (`MaskTensor`) is false, where the zeros are worth skipping."""

from collections.abc import Iterator, Mapping

from monotile.analysis.dead import Given, value_where
from monotile.ir.expr import Axis, Expr, Load, MaskTensor, loads, substitute
from monotile.ir.program import Compute

Pattern = Load  # of a MaskTensor: zero where it is false. Its index is in the axes of the statement that has the pattern
Patterns = Mapping[str, tuple[tuple[Axis, ...], tuple[Pattern, ...]]]  # by tensor: with its axes


def patterns_of(c: Compute, known: Patterns) -> tuple[Pattern, ...]:
    """The patterns of the result of `c`, which has no combiner. known: those of its operands."""
    found = (p for x, p in read_patterns(c, known) if value_where(c.body, _where(x)) == 0)
    return tuple(dict.fromkeys(found))


def read_patterns(c: Compute, known: Patterns) -> Iterator[tuple[Load, Pattern]]:
    """The operands of `c` that have patterns: in terms of its own axes."""
    for x in dict.fromkeys(loads(c.body)):
        if isinstance(x.tensor, MaskTensor):
            yield x, x
            continue
        axes, patterns = known.get(x.tensor.name, ((), ()))
        at: dict[str, Expr] = {a.name: i for a, i in zip(axes, x.index, strict=False)}
        for p in patterns:
            yield x, Load(p.tensor, tuple(substitute(i, at) for i in p.index))


def _where(x: Load) -> Given:
    """The value of `x` outside of its pattern: false for a mask, else 0."""
    mask = isinstance(x.tensor, MaskTensor)
    value = False if mask else 0.0 if x.dtype.is_float else 0
    return lambda e: value if e == x else None
