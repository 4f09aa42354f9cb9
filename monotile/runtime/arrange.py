"""Changes the strides of parameters to the memory order in which a kernel reads them."""

from collections.abc import Mapping

import torch

from monotile.runtime.tensors import kernel_readable
from monotile.transform.layout.align_axes import Order


def move(parameters: Mapping[str, torch.Tensor], orders: Mapping[str, Order]) -> None:
    """Moves `parameters` to new memory in these orders: dimension k in memory is dimension `order[k]` of the tensor. All holders of the
    Parameter see the new strides. A parameter that shares its memory with another tensor is not moved; the kernel reads a copy of it."""
    for name, order in orders.items():
        x = parameters.get(name)
        if x is not None and not x.permute(order).is_contiguous() and _alone(x):
            x.data = in_order(x.detach(), order)


def in_order(x: torch.Tensor, order: Order) -> torch.Tensor:
    """`x` in this dense order, readable by a kernel; `x` itself if it already is."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return kernel_readable(x.permute(order)).permute(back)


def compose_orders(first: Order | None, then: Order) -> Order:
    """The composition of two orders: `first`, then `then`."""
    return then if first is None else tuple(first[d] for d in then)


def _alone(x: torch.Tensor) -> bool:
    return x._base is None and x.untyped_storage().nbytes() == x.numel() * x.element_size()  # pyright: ignore[reportPrivateUsage]
