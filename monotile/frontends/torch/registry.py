"""The lowering of each operator: the merged tables of `lower/`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from monotile.frontends.torch.lower import (
    activations,
    antialias,
    attention,
    batch_norm,
    bit_views,
    conditions,
    constructors,
    convolution,
    data_dependent,
    detection,
    distance,
    experts,
    exponents,
    grid_sample,
    guards,
    incomplete_gamma,
    indexing,
    linear_systems,
    lu,
    masks,
    matmul,
    normalisation,
    orthogonal,
    overlap_add,
    padding,
    pointwise,
    pooling,
    quantized,
    random,
    recurrent,
    reductions,
    resampling,
    scans,
    scatters,
    segments,
    softmax,
    sorting,
    sparse,
    special,
    strided,
    views,
)
from monotile.ir.expr import Tensor

# Called with the Builder and the operator's arguments, with tensors as ir Tensors. Returns the
# operator's results; one that PyTorch leaves undefined may be None.
Lowering = Callable[..., Tensor | tuple[Tensor | None, ...] | None]

# By "aten.name.overload", or by "aten.name" for every overload without an entry.
LOWERINGS: Mapping[str, Lowering] = {
    **activations.LOWERINGS,
    **antialias.LOWERINGS,
    **attention.LOWERINGS,
    **batch_norm.LOWERINGS,
    **bit_views.LOWERINGS,
    **conditions.LOWERINGS,
    **constructors.LOWERINGS,
    **convolution.LOWERINGS,
    **detection.LOWERINGS,
    **distance.LOWERINGS,
    **experts.LOWERINGS,
    **exponents.LOWERINGS,
    **grid_sample.LOWERINGS,
    **incomplete_gamma.LOWERINGS,
    **indexing.LOWERINGS,
    **guards.LOWERINGS,
    **linear_systems.LOWERINGS,
    **lu.LOWERINGS,
    **masks.LOWERINGS,
    **matmul.LOWERINGS,
    **normalisation.LOWERINGS,
    **orthogonal.LOWERINGS,
    **overlap_add.LOWERINGS,
    **padding.LOWERINGS,
    **pointwise.LOWERINGS,
    **pooling.LOWERINGS,
    **quantized.LOWERINGS,
    **random.LOWERINGS,
    **recurrent.LOWERINGS,
    **reductions.LOWERINGS,
    **resampling.LOWERINGS,
    **scans.LOWERINGS,
    **scatters.LOWERINGS,
    **segments.LOWERINGS,
    **data_dependent.LOWERINGS,
    **softmax.LOWERINGS,
    **sorting.LOWERINGS,
    **sparse.LOWERINGS,
    **special.LOWERINGS,
    **strided.LOWERINGS,
    **views.LOWERINGS,
}


# PyTorch's other names.
_SAME = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctanh": "atanh", "divide": "div",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "multiply": "mul", "negative": "neg", "not_equal": "ne",
    "subtract": "sub",
}  # fmt: skip


def find(target: Any) -> Lowering | None:
    """The lowering of the fx target `target`, if there is one; of a view's copy, the view's."""
    name = str(target)
    packet, _, overload = name.rpartition(".")
    namespace, _, own = packet.partition(".")
    if namespace == "aten" and own in _SAME:
        packet = f"aten.{_SAME[own]}"
        name = f"{packet}.{overload}"
    found = LOWERINGS.get(name) or LOWERINGS.get(packet)
    if found is None and packet.endswith("_copy") and torch.Tag.view_copy in target.tags:
        view = packet.removesuffix("_copy")
        return LOWERINGS.get(f"{view}.{overload}") or LOWERINGS.get(view)
    return found
