"""Subnormal factors of products on the CPU count as zero (`device/vector.h: mt_flush`), as they do in its products of 16-bit floats.

That holds until sums are complete, also while operands are computed, and through the epilogue, if all of it maps small numbers to small
numbers. Where it does not, as in a logarithm, the mode is set for each tile's products alone.
"""

from collections.abc import Generator
from contextlib import contextmanager

from monotile.codegen.loops import Loops
from monotile.codegen.site import Site
from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Cast, Expr, Unary, children
from monotile.ir.program import value_of

CALM = frozenset("neg abs tanh erf logistic one_plus_erf sin cos trunc round isnan isinf".split())
CALM_PAIRS = frozenset({"add", "sub", "mul", "max", "min"})


def are_calm(site: Site, *, followers: bool) -> bool:
    """Whether no operand or epilogue of `site` makes a large number of one below the smallest normal number."""
    made = (site.anchor, *(site.followers if followers else ()))
    return all(_is_calm(value_of(s)) for s in made)


def _is_calm(e: Expr) -> bool:
    """Whether `e` is continuous at zero; a comparison, or rounding up, is not."""
    match e:
        case Unary(op, x):
            calm = op in CALM or not x.dtype.is_float
        case Binary(op, x):
            calm = op in CALM_PAIRS or not x.dtype.is_float
        case Cast(x, DType.BOOL):
            calm = not x.dtype.is_float
        case _:
            calm = True
    return calm and all(map(_is_calm, children(e)))


@contextmanager
def flushed(e: Loops, wanted: bool) -> Generator[None]:
    """A block within which subnormal numbers count as zero."""
    if not wanted:
        yield
        return
    mode = e.writer.fresh("mode")
    e.writer.write(f"const unsigned {mode} = mt_flush();")
    yield
    e.writer.write(f"mt_unflush({mode});")
