"""Which tensors are zero wherever a mask is false whose zeros are worth leaving out (`MaskTensor`)."""

from collections.abc import Iterator, Mapping

from monotile.analysis.dead import Given, value_where
from monotile.ir.expr import Axis, Expr, Load, MaskTensor, loads, substitute
from monotile.ir.program import Compute

Pattern = Load  # of a MaskTensor: zero where it is false. Its index is of the axes of whatever has the pattern
Patterns = Mapping[str, tuple[tuple[Axis, ...], tuple[Pattern, ...]]]  # by tensor: with its axes


def patterns_of(c: Compute, known: Patterns) -> tuple[Pattern, ...]:
    """Those of the result of `c`, which has no combiner. known: those of what it reads."""
    found = (p for x, p in read_patterns(c, known) if value_where(c.body, _where(x)) == 0)
    return tuple(dict.fromkeys(found))


def read_patterns(c: Compute, known: Patterns) -> Iterator[tuple[Load, Pattern]]:
    """What `c` reads that has one: in terms of its own axes."""
    for x in dict.fromkeys(loads(c.body)):
        if isinstance(x.tensor, MaskTensor):
            yield x, x
            continue
        axes, patterns = known.get(x.tensor.name, ((), ()))
        at: dict[str, Expr] = {a.name: i for a, i in zip(axes, x.index, strict=False)}
        for p in patterns:
            yield x, Load(p.tensor, tuple(substitute(i, at) for i in p.index))


def _where(x: Load) -> Given:
    """`x` where its pattern holds: a mask is false, all else 0."""
    mask = isinstance(x.tensor, MaskTensor)
    value = False if mask else 0.0 if x.dtype.is_float else 0
    return lambda e: value if e == x else None
