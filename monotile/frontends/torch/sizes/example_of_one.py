"""Example arguments of which a size that is open is 1, as a batch of one often is: what a model asks of it may make PyTorch take it for 1 in every call.
Such a model is exported with two instead."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim
from torch.export import dynamic_shapes as of_torch
from torch.utils import _pytree as pytree

Call = tuple[tuple[Any, ...], dict[str, Any]]


def of_two(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any
) -> Call | None:
    """The example with rows repeated where there is one of an open dimension; None where there is no such, or what is open is not known."""
    specs: list[tuple[torch.Tensor, int, Any]] = []

    def look(_: Any, x: Any, spec: Any = None) -> None:
        named = spec.items() if isinstance(spec, dict) else enumerate(spec or ())
        specs.extend((x, d, dim) for d, dim in named if isinstance(dim, Dim))

    try:
        given = of_torch._combine_args(model, args, dict(kwargs))  # pyright: ignore[reportPrivateUsage]
        of = given if isinstance(shapes, dict) else type(shapes)(given.values())
        of_torch._tree_map_with_path(look, of, shapes)  # pyright: ignore[reportPrivateUsage]
    except (TypeError, ValueError, AttributeError):
        return None
    ones = {dim.__name__ for x, d, dim in specs if type(dim) is Dim and x.shape[d] == 1 < dim.max}
    made: dict[int, torch.Tensor] = {}
    for x, d, dim in specs:
        root: Any = getattr(dim, "root", dim)
        if root.__name__ in ones:
            now, fn = made.get(id(x), x), getattr(dim, "fn", int)
            places = torch.arange(fn(2), device=x.device) % x.shape[d]
            made[id(x)] = now.index_select(d, places)
    if not made:
        return None
    return pytree.tree_map(lambda x: made.get(id(x), x), (tuple(args), dict(kwargs)))
