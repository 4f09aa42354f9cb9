"""Pooling over and to symbolic sizes that PyTorch makes numbers of, in terms of other operators."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from monotile.frontends.torch.loops.stacked import is_dynamic


def _max_pool1d(
    x: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, **named: Any,
) -> torch.Tensor | None:  # fmt: skip
    """PyTorch's own turns all sizes into numbers."""
    if not any(map(is_dynamic, x.shape)) or named.get("return_indices"):
        return None
    whole = _max_pool(1)(x, kernel_size, stride, padding, dilation, ceil_mode)
    if whole is not None:
        return whole
    ways = (kernel_size, stride or kernel_size, padding, dilation)
    ways = [(first, *_several(n, 1)) for first, n in zip((1, 1, 0, 1), ways, strict=True)]
    pool: Any = functional.max_pool2d
    return pool(x.unsqueeze(-2), *ways, ceil_mode).squeeze(-2)


def _max_pool(count: int) -> Callable[..., Any]:
    """A pooling over the whole extent of some dynamic ones of `count` dimensions."""

    def pool(
        x: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:  # fmt: skip
        kernel, strides, ends, gaps = (_several(n, count) for n in (kernel_size, stride or kernel_size, padding, dilation))  # fmt: skip
        whole = _whole(x, kernel, strides, ends)
        if not whole or return_indices or any(gaps[d] != 1 for d in whole):
            return None
        x = x.amax(whole, keepdim=True)
        if len(whole) == count:
            return x
        of: Any = getattr(functional, f"max_pool{count}d")
        kernel, strides = (_apart(n, whole) for n in (kernel, strides))
        return of(x, kernel, strides, ends, gaps, ceil_mode)

    return pool


def _avg_pool(count: int) -> Callable[..., Any]:
    """The same of means."""

    def pool(
        x: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> Any:  # fmt: skip
        kernel, strides, ends = (_several(n, count) for n in (kernel_size, stride or kernel_size, padding))  # fmt: skip
        whole = _whole(x, kernel, strides, ends)
        if not whole or divisor_override is not None:
            return None
        x = x.mean(whole, keepdim=True)
        if len(whole) == count:
            return x
        of: Any = getattr(functional, f"avg_pool{count}d")
        kernel, strides = (_apart(n, whole) for n in (kernel, strides))
        return of(x, kernel, strides, ends, ceil_mode, count_include_pad)

    return pool


def _whole(x: torch.Tensor, kernel: Sequence[Any], strides: Sequence[Any], padding: Sequence[Any]) -> tuple[int, ...] | None:  # fmt: skip
    """The dynamic dimensions, from the end, of which a window is the whole extent; None if another window or stride is dynamic."""
    every = range(-len(kernel), 0)
    found = tuple(d for d in every if is_dynamic(kernel[d]))
    whole = all(
        expression_of(kernel[d]) == expression_of(x.shape[d]) and padding[d] == 0 for d in found
    )
    moved = any(is_dynamic(strides[d]) for d in every if d not in found)
    return found if whole and not moved else None


def _apart(n: Sequence[Any], whole: Sequence[int]) -> tuple[Any, ...]:
    """`n` of each dimension, but 1 of those that are `whole`."""
    return tuple(1 if d - len(n) in whole else n[d] for d in range(len(n)))


def _adaptive_avg_pool1d(x: torch.Tensor, output_size: Any) -> torch.Tensor | None:
    """PyTorch supports symbolic output sizes of images."""
    (size,) = _several(output_size, 1)
    if not is_dynamic(size):
        return None
    return functional.adaptive_avg_pool2d(x.unsqueeze(-2), (1, size)).squeeze(-2)


def _adaptive_max_pool(count: int) -> Callable[..., Any]:
    """The maxima of parts of the last `count` dimensions."""

    def pool(x: torch.Tensor, output_size: Any, return_indices: bool = False) -> Any:
        sizes = _several(output_size, count)
        if return_indices or not x.is_floating_point() or not any(map(is_dynamic, sizes)):
            return None
        for d in range(-count, 0):
            n, m = x.shape[d], sizes[d]
            if m is None:
                continue
            k, at = torch.arange(m, device=x.device)[:, None], torch.arange(n, device=x.device)
            inside = (at >= k * n // m) & (at * m < (k + 1) * n)
            parts = x.movedim(d, -1).unsqueeze(-2).masked_fill(~inside, -torch.inf)
            x = parts.amax(-1).movedim(-1, d)
        return x

    return pool


def _several(x: Any, count: int) -> tuple[Any, ...]:
    return (x,) * count if isinstance(x, int | torch.SymInt) else (*x,) * (count // len(x))


def expression_of(x: Any) -> Any:
    """PyTorch's expression of a size; a number itself."""
    return x.node.expr if isinstance(x, torch.SymInt) else x


POOLS: Mapping[str, Callable[..., Any]] = {
    "max_pool1d": _max_pool1d,
    "max_pool2d": _max_pool(2),
    "max_pool3d": _max_pool(3),
    "avg_pool1d": _avg_pool(1),
    "avg_pool2d": _avg_pool(2),
    "avg_pool3d": _avg_pool(3),
    "adaptive_avg_pool1d": _adaptive_avg_pool1d,
    "adaptive_max_pool1d": _adaptive_max_pool(1),
    "adaptive_max_pool2d": _adaptive_max_pool(2),
    "adaptive_max_pool3d": _adaptive_max_pool(3),
}
