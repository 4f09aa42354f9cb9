"""Operators of symbolic sizes that PyTorch supports only for plain numbers, or whose sizes it makes data-dependent, and bags of equal size, in terms of
other operators."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.utils import _pytree as pytree

from monotile.frontends.torch.loops.stacked import is_dynamic, is_symbolic
from monotile.frontends.torch.rewriting.fake_quantizing import fake_quantized, of_channels
from monotile.frontends.torch.sizes.antialiasing import antialiased
from monotile.frontends.torch.sizes.open_pools import POOLS, expression_of
from monotile.frontends.torch.sizes.signals import SIGNALS


def symbolic_result(name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """The result of the operator; None where PyTorch supports it."""
    of = _OPERATORS.get(name)
    return of(*args, **named) if of else None


def _linspace(
    start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **named: Any
) -> torch.Tensor | None:
    """Counted from both ends, as PyTorch does."""
    if not is_symbolic(steps):
        return None
    named.pop("out", None)
    k = torch.arange(steps, **named).to(dtype or torch.get_default_dtype())
    last = torch.full_like(k, steps) - 1
    step = (end - start) / last.clamp(min=1)
    ahead = ((last + 1) // 2).clamp(min=1)
    return torch.where(k < ahead, start + step * k, end - step * (last - k))


def _logspace(start: Any, end: Any, steps: Any, base: float = 10.0, **named: Any) -> Any:
    powers = _linspace(start, end, steps, **named)
    return None if powers is None else base**powers


def _as_tensor(data: Any, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor | None:
    """PyTorch's own turns sizes into numbers; its tracer's version of `torch.tensor` does not."""
    leaves = pytree.tree_leaves(data)
    if not any(map(is_dynamic, leaves)) or any(isinstance(x, torch.Tensor) for x in leaves):
        return None
    return torch._refs.tensor(data, dtype=dtype, device=device)  # pyright: ignore[reportAttributeAccessIssue]


def _new_tensor(x: torch.Tensor, data: Any, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor | None:  # fmt: skip
    return _as_tensor(data, dtype or x.dtype, device or x.device)


def _combinations(
    x: torch.Tensor, r: int = 2, with_replacement: bool = False
) -> torch.Tensor | None:
    """PyTorch's own selects by a mask."""
    if x.ndim != 1 or is_dynamic(x.shape[0]) or r < 1:
        return None
    of = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = torch.tensor([*of(range(x.shape[0]), r)], dtype=torch.int64, device=x.device)
    return x[places.reshape(-1, r)]


def _cov(
    x: torch.Tensor, *, correction: Any = 1, fweights: Any = None, aweights: Any = None
) -> torch.Tensor | None:
    """PyTorch's own reads the values of weights, even if there are none."""
    if fweights is not None or aweights is not None or x.is_complex() or x.ndim not in (1, 2):
        return None
    rows = x.reshape(-1, x.shape[-1])
    rows = rows - rows.mean(1, keepdim=True)
    found = rows @ rows.T / torch.sym_max(x.shape[-1] - correction, 0)
    return found if x.ndim == 2 and x.shape[0] != 1 else found.squeeze()


def _corrcoef(x: torch.Tensor) -> torch.Tensor | None:
    found = _cov(x)
    if found is None:
        return None
    if not found.ndim:
        return found / found
    scale = found.diagonal().sqrt()
    return (found / scale[:, None] / scale).clamp(-1, 1)


def _kron(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    if not any(map(is_symbolic, (*a.shape, *b.shape))):
        return None
    count = max(a.ndim, b.ndim)
    a, b = (x.reshape((1,) * (count - x.ndim) + tuple(x.shape)) for x in (a, b))
    shape = [m * n for m, n in zip(a.shape, b.shape, strict=True)]
    for d in range(count):
        a, b = a.unsqueeze(2 * d + 1), b.unsqueeze(2 * d)
    return (a * b).reshape(shape)


def _triangle(lower: bool) -> Callable[..., Any]:
    """The indices of a square matrix's elements on one side of the diagonal, with it or without."""

    def indices(row: Any, col: Any, offset: int = 0, *, dtype: Any = torch.int64, device: Any = None, **_: Any) -> Any:  # fmt: skip
        beside = -offset if lower else offset
        if not is_dynamic(row) or expression_of(row) != expression_of(col) or beside not in (0, 1):
            return None
        n = row - beside  # rows that have elements
        k = torch.arange(n * (n + 1) // 2, device=device)
        k = k if lower else n * (n + 1) // 2 - 1 - k
        rows = ((torch.sqrt(8.0 * k.double() + 1) - 1) / 2).long()  # the root of a square is exact
        both = torch.stack([rows, k - rows * (rows + 1) // 2])
        both = both if lower else n - 1 - both
        far = torch.tensor([[beside], [0]] if lower else [[0], [beside]], device=device)
        return (both + far).to(dtype)

    return indices


def _fill_diagonal(x: torch.Tensor, fill_value: Any, wrap: bool = False) -> torch.Tensor | None:
    if x.ndim != 2 or wrap or not any(map(is_dynamic, x.shape)):
        return None
    rows, columns = (torch.arange(n, device=x.device) for n in x.shape)
    return x.masked_fill_(rows[:, None] == columns, fill_value)


def _one_hot(x: torch.Tensor, num_classes: Any = -1) -> torch.Tensor | None:
    if not is_dynamic(num_classes):
        return None
    return (x.unsqueeze(-1) == torch.arange(num_classes, device=x.device)).to(torch.int64)


def _affine_grid(
    theta: torch.Tensor, size: Sequence[Any], align_corners: bool | None = None
) -> torch.Tensor | None:
    """PyTorch's own makes numbers of the sizes."""
    extents = size[2:]
    fits = theta.ndim == 3 and theta.shape[1:] == (len(extents), len(extents) + 1)
    if not (fits and theta.is_floating_point() and any(map(is_symbolic, extents))):
        return None
    torch._check(theta.shape[0] == size[0])  # pyright: ignore[reportPrivateUsage]
    wide = theta.to(torch.promote_types(theta.dtype, torch.float32))
    found = wide[..., -1].reshape(-1, *(1 for _ in extents), len(extents))
    for d, n in enumerate(extents):
        place = 2 * torch.arange(n, device=theta.device) - (n - 1)
        scale = torch.sym_max(n - 1, 1) if align_corners else n
        along = (place.to(wide.dtype) / scale).reshape(-1, *(1 for _ in extents[d:]))
        factor = wide[..., len(extents) - 1 - d]  # coordinates come in the order x, y, z
        found = found + along * factor.reshape(-1, *(1 for _ in extents), len(extents))
    return found.to(theta.dtype)


def _embedding_bag(
    indices: torch.Tensor, weight: torch.Tensor, offsets: Any = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Any = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> torch.Tensor | None:  # fmt: skip
    """Bags of equal size, of which PyTorch makes one list with offsets."""
    del norm_type, scale_grad_by_freq, sparse, include_last_offset
    given = any(x is not None for x in (offsets, max_norm, per_sample_weights, padding_idx))
    if given or indices.ndim != 2 or indices.is_floating_point() or not weight.is_floating_point():
        return None
    if mode not in _OF_BAGS:
        return None
    return getattr(functional.embedding(indices, weight), _OF_BAGS[mode])(1)


_OF_BAGS = {"sum": "sum", "mean": "mean", "max": "amax"}


def _rounded(of: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's own `of` does not support symbolic shapes."""

    def rounded(x: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor | None:
        if named or not any(map(is_dynamic, x.shape)):
            return None
        plain = (a.reshape(()) if of is fake_quantized and isinstance(a, torch.Tensor) else a for a in args)  # fmt: skip
        return of(x, *plain)[0]

    return rounded


_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "linspace": _linspace,
    "logspace": _logspace,
    "as_tensor": _as_tensor,
    "asarray": _as_tensor,
    "new_tensor": _new_tensor,
    "combinations": _combinations,
    "cov": _cov,
    "corrcoef": _corrcoef,
    "fill_diagonal_": _fill_diagonal,
    "one_hot": _one_hot,
    "embedding_bag": _embedding_bag,
    "fake_quantize_per_tensor_affine": _rounded(fake_quantized),
    "fake_quantize_per_channel_affine": _rounded(of_channels),
    **POOLS,
    "kron": _kron,
    "tril_indices": _triangle(lower=True),
    "triu_indices": _triangle(lower=False),
    **SIGNALS,
    "interpolate": antialiased,
    "affine_grid": _affine_grid,
    "affine_grid_generator": _affine_grid,
}
