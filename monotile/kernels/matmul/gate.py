"""Gates: results that are element-wise in several sums of one product.

A gated linear unit (GLU, SwiGLU, GEGLU: Shazeer 2020, "GLU Variants Improve Transformer") combines the two halves of a linear layer's
result, or the results of two layers with the same input, which horizontal fusion has joined. Found by structure: a reader of several
parts of a product at the same index.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from monotile.analysis.affine import affine
from monotile.analysis.contraction import Contraction, contraction
from monotile.analysis.dependence import independent
from monotile.ir.expr import Expr, Load, Tensor, loads, map_loads, substitute
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common.product import Product, product_of
from monotile.kernels.draft import Context
from monotile.kernels.family import Match, Statements
from monotile.kernels.matmul.memory import LINE_BYTES
from monotile.kernels.matmul.method import Matmul, MatmulGate
from monotile.plan.nodes import Step
from monotile.targets.target import Target

MOST_PARTS = 4
LEAST = 8  # columns of each part in a block


@dataclass(frozen=True, slots=True)
class Gate:
    """product: the sums. result: computed from them. sums: each part of the product as a separate Compute, with the axes of the result;
    they have the left factor in common. value: the result's expression, which loads the parts in place."""

    product: Compute
    result: Compute
    sums: tuple[Compute, ...]
    value: Expr


def gate(result: Compute, product: Compute) -> Gate | None:
    """`result` as a gate of the sums `product`, or None."""
    if result.combiner is not None or product.combiner != "sum" or not result.axes:
        return None
    if any(x.axis in product.reduce for x in product.live):
        return None
    places = _places(result, product.out)
    if not 1 < len(places) <= MOST_PARTS or len(places) * result.out.size > product.out.size:
        return None
    sums = tuple(_part(product, result, index, k) for k, index in enumerate(places))
    if not _beside(sums):
        return None
    parts = dict(zip(places, sums, strict=True))

    def here(x: Load) -> Load:
        return Load(parts[x.index].out, result.axes) if x.tensor == product.out else x

    return Gate(product, result, sums, map_loads(result.body, here))


def _places(result: Compute, made: Tensor) -> list[tuple[Expr, ...]]:
    """The indices at which `result` reads `made`, in order; () unless they are equal positions of parts that are separate along one
    dimension."""
    found = list(dict.fromkeys(x.index for x in loads(result.body) if x.tensor == made))
    if not found or any(loads(i) for i in found[0]):
        return []
    apart = [k for k, along in enumerate(zip(*found, strict=True)) if len(set(along)) > 1]
    if len(apart) != 1 or len(independent(found[0], result.axes)) < len(result.axes):
        return []
    starts = {i: affine(i[apart[0]]) for i in found}
    if any(loads(i[apart[0]]) for i in found) or len({a.terms for a in starts.values()}) > 1:
        return []
    return sorted(found, key=lambda i: starts[i].constant)


def _part(product: Compute, result: Compute, index: tuple[Expr, ...], number: int) -> Compute:
    """The sums at `index` of `product`, over the axes of `result`."""
    out = Tensor(f"{product.out.name}[{number}]", result.out.shape, product.out.dtype)
    point = {a.name: i for a, i in zip(product.axes, index, strict=True)}
    body = substitute(product.body, point)
    return msgspec.structs.replace(product, out=out, axes=result.axes, body=body, live=result.live)


def _beside(sums: tuple[Compute, ...]) -> bool:
    """Whether they are products of one left factor."""
    first, *others = map(contraction, sums)
    return first is not None and not first.grains and all(x is not None and _alike(x, first) for x in others)  # fmt: skip


def _alike(x: Contraction, y: Contraction) -> bool:
    return msgspec.structs.replace(x, right=y.right) == y


def products_of(found: Gate, context: Context) -> Product | None:
    """Its parts as matrix products with equal operand layouts; None where there are none, or they differ."""
    first, *others = (product_of(s, context) for s in found.sums)
    if first is None or any(x != first for x in others):
        return None
    return None if first.grain_m or first.grain_n else first


def takes_several(c: Matmul, products: int, itemsize: int, target: Target) -> bool:
    """Whether a block of the method `c` may have the columns of so many products side by side: in whole groups, and a thread's share of
    the right operand's rows is all of a chunk, or of one product; of two where it is copied asynchronously. itemsize: bytes of an
    element."""
    each = c.block_n // products
    if c.sparse or c.runs > 1 or c.block_n % products or each % LEAST:
        return False
    if c.right.major == "mn":
        line = LINE_BYTES // itemsize
        lines = line if itemsize == 2 and c.block_n % line == 0 else c.block_n
    else:
        threads, pieces = c.warps_m * c.warps_n * target.warp, c.block_k // c.right.vector
        lines = threads // pieces if threads % pieces == 0 else 0
    if lines == 0 or lines >= c.block_n:
        return lines > 0
    return lines <= each if c.right.copy == "async" else each % lines == 0


def as_gate(c: Matmul, parts: int) -> MatmulGate:
    """The method `c` of a step whose result is computed from so many sums each."""
    return MatmulGate(**{name: getattr(c, name) for name in c.__struct_fields__}, parts=parts)


def match(result: Compute, computes: Mapping[str, Compute], context: Context) -> Match | None:
    """The gate that computes `result`, for a product that is worth separate tiles."""
    if not context.target.has.lockstep:
        return None
    for name in dict.fromkeys(x.tensor.name for x in loads(result.body)):
        found = gate(result, computes[name]) if name in computes else None
        if found is not None and products_of(found, context) is not None:
            return Match((found.product,), found)
    return None


def sums_of(step: Step, statements: Statements) -> tuple[Compute, ...]:
    """The products of a step: its anchor, or the parts that its anchor, a gate, combines; none where it is neither."""
    return sums_in([statements[n] for n in step.computes[: step.anchor + 1]])


def sums_in(made: Sequence[Compute | Scatter]) -> tuple[Compute, ...]:
    """The same as `sums_of`. made: the step's computes up to its anchor."""
    found = gate_in(made)
    anchor = made[-1]
    return found.sums if found else (anchor,) if isinstance(anchor, Compute) else ()


def gate_in(made: Sequence[Compute | Scatter]) -> Gate | None:
    """The gate that the last of `made` is, of the product before it."""
    match made:
        case [Compute() as product, Compute() as result] if result.combiner is None:
            return gate(result, product)
        case _:
            return None
