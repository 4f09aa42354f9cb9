"""Loops with a fixed number of steps over matrices, for lowerings of linear algebra."""

from collections.abc import Callable, Sequence

from monotile.frontends.builder import Builder, Unsupported
from monotile.frontends.torch.sizes.size import Size
from monotile.ir.expr import Axis, Expr, Tensor
from monotile.ir.program import Carry, Loop, Stack

At = Callable[..., Expr]  # an element by its index

# A step: (builder of the body, number of the step, states) -> new states, and what it leaves.
Step = Callable[[Builder, Axis, Sequence[Tensor]], tuple[Sequence[Tensor], Sequence[Tensor]]]


def iterated(
    b: Builder, steps: int, states: Sequence[Tensor], step: Step
) -> tuple[list[Tensor], list[Tensor]]:
    """The states after the last step, and the outputs of each step, stacked along a new first dimension. There is at least one step."""
    axis = Axis(b.names.unique(f"{b.node}_step"), steps)
    inner = b.nested(axis)
    params = [b.tensor(t.shape, t.dtype, "state") for t in states]
    results, left = step(inner, axis, params)
    carried = tuple(
        Carry(init, param, result, b.tensor(init.shape, init.dtype, "final"))
        for init, param, result in zip(states, params, results, strict=True)
    )
    stacks = tuple(Stack(t, b.tensor((steps, *t.shape), t.dtype, "steps")) for t in left)
    b.append(Loop(axis, carried, stacks, tuple(inner.statements), origin=b.origin))
    return [c.out for c in carried], [t.out for t in stacks]


def matrix_sizes(x: Tensor) -> tuple[tuple[int, ...], int, int]:
    """Leading dimensions, m and n of [..., m, n]. Raises Unsupported if m or n is a dynamic size, or 0."""
    *batch, m, n = x.shape
    if isinstance(m, Size) or isinstance(n, Size):
        raise Unsupported("a matrix whose size the call decides")
    if not (m and n):
        raise Unsupported("an empty matrix")
    return tuple(batch), m, n


def transposed(at: At) -> At:
    """The elements of the transposed matrix."""
    return lambda *i: at(*i[:-2], i[-1], i[-2])
