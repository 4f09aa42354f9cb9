"""Is a result right? PyTorch in float64 says what it should be, PyTorch in float32 how near one can get."""

from typing import Any

import torch
import torch.utils._pytree as pytree

_RELATIVE = 1e-5
_ABSOLUTE = 1e-5


def mismatch(found: Any, eager: Any, exact: Any | None) -> str | None:
    """What is wrong with `found`; None if nothing is.

    eager: PyTorch's result for the same arguments. exact: in float64, where that could be had.
    """
    a, tree = pytree.tree_flatten(found)
    b, expected = pytree.tree_flatten(eager)
    if tree != expected:
        return f"structure {tree}, not {expected}"
    c, wide = pytree.tree_flatten(exact)
    exacts = c if wide == expected else [None] * len(b)
    for k, (x, y, z) in enumerate(zip(a, b, exacts, strict=True)):
        problem = _leaf(x, y, z)
        if problem:
            return problem if len(b) == 1 else f"result {k}: {problem}"
    return None


def _leaf(x: Any, y: Any, z: Any) -> str | None:
    if not isinstance(y, torch.Tensor):
        return None if type(x) is type(y) and (x == y or x != x) else f"{x}, not {y}"
    if x.dtype != y.dtype or x.shape != y.shape or x.device != y.device:
        return f"{x.dtype}{list(x.shape)} on {x.device}, not {y.dtype}{list(y.shape)} on {y.device}"
    if not y.is_floating_point():
        return None if torch.equal(x, y) else _first(x, y, x != y)
    if y.dtype != torch.float32:
        return _floats(x, y, y)
    fits = isinstance(z, torch.Tensor) and z.dtype == torch.float64 and z.shape == y.shape
    return _floats(x, y, z if fits else y)


def _floats(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> str | None:
    a, b, exact = (t.detach().double().reshape(-1) for t in (x, y, z))
    finite = b.isfinite()
    same = torch.where(finite, a.isfinite(), (a == b) | (a.isnan() & b.isnan()))
    if not same.all():
        return _first(x, y, ~same.reshape(y.shape))
    exact = torch.where(exact.isfinite(), exact, b)
    a, b, exact = a[finite], b[finite], exact[finite]
    allowed = _allowed((b - exact).abs(), exact.abs(), torch.finfo(y.dtype).eps)
    wrong = torch.zeros_like(finite)
    wrong[finite] = ((a - exact).abs() > allowed) & (a != b)
    return _first(x, z, wrong.reshape(y.shape)) if wrong.any() else None


def _allowed(error: torch.Tensor, size: torch.Tensor, eps: float) -> torch.Tensor:
    """Four times PyTorch's own largest error at elements up to a hundred times as large, and a bit."""
    order = size.argsort()
    ascending = size[order]
    worst = error[order].cummax(0).values if len(order) else error
    last = torch.searchsorted(ascending, 100 * size.clamp(min=1e-2), right=True) - 1
    unit = max(eps / torch.finfo(torch.float32).eps, 1.0)
    return 4 * worst[last] + unit * (_RELATIVE * size + _ABSOLUTE)


def _first(x: torch.Tensor, y: torch.Tensor, wrong: torch.Tensor) -> str:
    at = tuple(wrong.nonzero()[0].tolist())
    count = int(wrong.sum())
    return f"{count} of {wrong.numel()} elements, first at {list(at)}: {x[at].item()}, not {y[at].item()}"
