"""Common subexpression elimination of whole Computes."""

from collections.abc import Hashable

from monotile.ir.expr import Tensor
from monotile.ir.program import Compute, Statement
from monotile.transform.replace import Moved, renamed, replace_uses


def eliminate_common_subexpressions(
    body: tuple[Statement, ...], results: tuple[Tensor, ...]
) -> tuple[Statement, ...]:
    """`body` with equal Computes merged into the first of them, such as a mask that every layer computes anew.
    results: tensors used after it, which are kept. Returns the same object if nothing changes.
    """
    fixed = {t.name for t in results}
    known: dict[Hashable, Tensor] = {}
    moved: dict[str, Moved] = {}
    out: list[Statement] = []
    for old in body:
        s = replace_uses(old, moved)
        if isinstance(s, Compute):
            key = (s.out.shape, s.out.dtype, s.axes, s.reduce, s.combiner, s.body)
            first = known.setdefault(key, s.out)
            if first is not s.out and s.out.name not in fixed:
                moved[s.out.name] = renamed(first)
                continue
        out.append(s)
    return tuple(out) if moved else body
