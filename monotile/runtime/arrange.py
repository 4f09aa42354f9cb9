"""Parameters are moved to the order in memory in which a kernel reads them."""

from collections.abc import Mapping

import torch

from monotile.runtime.tensors import plain
from monotile.transform.layout.align_axes import Order


def move(parameters: Mapping[str, torch.Tensor], orders: Mapping[str, Order]) -> None:
    """Gives `parameters` memory of their own in these orders: dimension k in memory is `order[k]` of the tensor's own. Whoever holds
    the same Parameter sees it moved. One that shares its memory with another tensor stays: a kernel reads a copy."""
    for name, order in orders.items():
        x = parameters.get(name)
        if x is not None and not x.permute(order).is_contiguous() and _alone(x):
            x.data = in_order(x.detach(), order)


def in_order(x: torch.Tensor, order: Order) -> torch.Tensor:
    """`x` as a kernel can read it, dense in this order; itself if it is already."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return plain(x.permute(order)).permute(back)


def composed(first: Order | None, then: Order) -> Order:
    """The order of what has been arranged by `first`, and then by `then`."""
    return then if first is None else tuple(first[d] for d in then)


def _alone(x: torch.Tensor) -> bool:
    return x._base is None and x.untyped_storage().nbytes() == x.numel() * x.element_size()  # pyright: ignore[reportPrivateUsage]
