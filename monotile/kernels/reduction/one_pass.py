"""A sum, and the sum of squared deviations from its mean, in one pass: two steps become one.

The Program has two passes, which lose no precision; parts with their own mean and sum of squares combine to those of both with equal
precision (`kernels/common/moments.py`). The normalised tensor is then read once.
"""

import msgspec

from monotile.analysis.dependence import follows, loads_of
from monotile.analysis.ends import segment_ends
from monotile.ir.dtype import DType
from monotile.ir.program import Compute
from monotile.kernels.common.moments import is_squares
from monotile.kernels.family import Statements
from monotile.kernels.reduction.cuts import scratch_bytes
from monotile.kernels.reduction.method import Reduce, ReduceMoments
from monotile.plan.nodes import Step
from monotile.targets.target import Target


def one_pass(first: Step, second: Step, statements: Statements, target: Target) -> Step | None:
    """Both steps as one, if the second one's threads would read the same elements as the first one's; else None."""
    a, b = first.method, second.method
    if not target.has.lockstep or type(a) is not Reduce or a != b or first.dims != second.dims:
        return None
    if first.bounds or second.bounds or a.prefetch:
        return None
    method = ReduceMoments(
        **{f: getattr(a, f) for f in a.__struct_fields__}, squares=second.computes[0]
    )
    both = msgspec.structs.replace(
        first,
        computes=(*first.computes, *second.computes),
        method=method,
        scratch_bytes=scratch_bytes(method, target),
    )
    fits = both.scratch + both.scratch_bytes <= target.shared_bytes
    return both if fits and not why_not_one_pass(both, statements) else None


def why_not_one_pass(step: Step, statements: Statements) -> str:
    """Why the sum and the squares of `step` cannot be computed in one pass; "" if they can."""
    method, names = step.method, step.computes
    assert isinstance(method, ReduceMoments)
    if method.squares not in names[1:]:
        return f"{method.squares} is none of the step's"
    at = names.index(method.squares)
    total, squares = statements[names[0]], statements[method.squares]
    if not isinstance(total, Compute) or not isinstance(squares, Compute):
        return "a sum is no Scatter"
    if total.combiner != "sum" or squares.combiner != "sum" or total.live or squares.live:
        return "only sums of all terms are"
    if segment_ends(total) is not None or segment_ends(squares) is not None:
        return "each output has ends of its own"
    if method.at_once or method.windows > 1 or method.simd is not None:
        return "a thread has its outputs one by one"
    for anchor, later in ((total, names[1:at]), (squares, names[at + 1 :])):
        for name in later:
            s = statements[name]
            own = [x for x in loads_of(s) if x.tensor.name in names]
            if not (isinstance(s, Compute) and s.out.shape == anchor.out.shape and follows(s, own)):
                return f"{name} does not follow {anchor.out.name} element by element"
    near = [x for x in loads_of(squares) if x.tensor.name in names]
    if squares.out.shape != total.out.shape or not follows(squares, near):
        return f"{squares.out.name} is not at the place of {total.out.name}"
    values = {n: s for n in names[1:at] if isinstance(s := statements[n], Compute)}
    if {s.dtype for c in (total, squares) for s in (c.body, c.out)} != {DType.F32}:
        return "they are not of float32"
    return "" if is_squares(squares, total, values) else f"{squares.out.name} has other terms"
