"""The device library's combiner of a reduction step, and the epilogue of its result."""

from collections.abc import Mapping
from dataclasses import replace

from monotile.codegen.base import VALUES, Emitter
from monotile.codegen.site import Site
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr
from monotile.ir.program import Compute
from monotile.kernels.common.combiners import COMBINER
from monotile.kernels.reduction.method import Reduce, ReduceMoments


def combiner_of(anchor: Compute, method: Reduce) -> str:
    """The C++ type of the combiner."""
    if isinstance(method, ReduceMoments):
        return "mt::SumAndSquares"
    return f"mt::{COMBINER[str(anchor.combiner)]}<{VALUES[anchor.body.dtype]}>"


def finish(e: Emitter, site: Site, point: Mapping[str, Expr], text: str, dtype: DType) -> None:
    """Stores the result `text` at `point`, and writes its epilogue. Of a sum and its squares `text` is the combined partial result."""
    method = site.step.method
    if not isinstance(method, ReduceMoments):
        e.finish(site, point, text, dtype)
        return
    at = next(k for k, s in enumerate(site.followers) if s.out.name == method.squares)
    squares = site.followers[at]
    if not isinstance(squares, Compute):
        raise InternalError(f"{method.squares} is no sum")
    e.finish(replace(site, followers=site.followers[:at]), point, f"{text}.sum", dtype)
    axes = {b.name: point[a.name] for a, b in zip(site.anchor.axes, squares.axes, strict=True)}
    rest = replace(site, anchor=squares, followers=site.followers[at + 1 :])
    e.finish(rest, {**point, **axes}, f"{text}.squares", dtype)
