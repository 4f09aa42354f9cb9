"""Complex tensors in control flow: an operand or result is two real ones, one behind the other."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from monotile.frontends.builder import Type
from monotile.frontends.torch.complex.pair import PARTS, Pair
from monotile.frontends.torch.sizes.size import Shapes
from monotile.frontends.torch.types import type_of


def flattened(values: Iterable[Any]) -> list[Any]:
    """`values` with the components of each complex tensor in its place."""
    return [part for x in values for part in (x if isinstance(x, Pair) else (x,))]


def flattened_arguments(args: Sequence[Any]) -> list[Any]:
    """The same of an operator's arguments, which may be lists."""
    inner = (
        flattened(x) if isinstance(x, list | tuple) and not isinstance(x, Pair) else x for x in args
    )
    return flattened(inner)


def regrouped(values: Sequence[Any], like: Iterable[Any]) -> list[Any]:
    """The reverse of `flattened`. like: PyTorch's own values."""
    parts = iter(values)
    return [Pair(next(parts), next(parts)) if _is_complex(x) else next(parts) for x in like]


def flattened_types(like: Iterable[Any], shapes: Shapes) -> tuple[Type, ...]:
    """The types of the components of tensors."""
    found = list[Type]()
    for x in like:
        if _is_complex(x):
            found += [Type(tuple(map(shapes.size, x.shape)), PARTS[x.dtype])] * 2
        elif isinstance(x, torch.Tensor):
            found.append(type_of(x, shapes))
    return tuple(found)


def _is_complex(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in PARTS
