"""Example arguments: their dynamic dimensions, and copies with other sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim
from torch.export import dynamic_shapes as of_torch
from torch.utils import _pytree as pytree

from monotile.errors import CaptureError

Call = tuple[tuple[Any, ...], dict[str, Any]]


def dynamic_dims(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any
) -> list[tuple[torch.Tensor, int, Any]] | None:
    """Each tensor with a dynamic dimension of `shapes`, as `torch.export` takes it, and that Dim; None if unknown. Raises CaptureError for a
    dimension that a tensor does not have."""
    found: list[tuple[torch.Tensor, int, Any]] = []

    def look(_: Any, x: Any, spec: Any = None) -> None:
        named = spec.items() if isinstance(spec, dict) else enumerate(spec or ())
        for d, dim in named:
            if isinstance(x, torch.Tensor) and isinstance(d, int) and d >= x.dim():
                raise CaptureError(f"dynamic_shapes names dimension {d} of a tensor that has {x.dim()} dimensions")  # fmt: skip
            if isinstance(dim, Dim):
                found.append((x, d, dim))

    try:
        given = of_torch._combine_args(model, args, dict(kwargs))  # pyright: ignore[reportPrivateUsage]
        of = given if isinstance(shapes, dict) else type(shapes)(given.values())
        of_torch._tree_map_with_path(look, of, shapes)  # pyright: ignore[reportPrivateUsage]
    except (TypeError, ValueError, AttributeError, AssertionError):
        return None  # torch.export reports what does not match
    return found


def with_size(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """`x` with its rows truncated, or repeated from the first."""
    if size <= x.shape[dim]:
        return x.narrow(dim, 0, size).clone()
    return x.index_select(dim, torch.arange(size, device=x.device) % x.shape[dim])


def with_sizes_of_two(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any
) -> Call | None:
    """The example with rows repeated where a dynamic dimension has size 1, as a batch often has: PyTorch may fix a size of 1. None if there is no such
    dimension, or if the dynamic dimensions are unknown."""
    dims = dynamic_dims(model, args, kwargs, shapes) or []
    ones = {dim.__name__ for x, d, dim in dims if type(dim) is Dim and x.shape[d] == 1 < dim.max}
    made: dict[int, torch.Tensor] = {}
    for x, d, dim in dims:
        root: Any = getattr(dim, "root", dim)
        if root.__name__ in ones:
            made[id(x)] = with_size(made.get(id(x), x), d, getattr(dim, "fn", int)(2))
    if not made:
        return None
    return pytree.tree_map(lambda x: made.get(id(x), x), (tuple(args), dict(kwargs)))
