"""The pseudoinverse by singular values."""

from typing import Any

import torch


def pseudoinverse(
    x: torch.Tensor,
    *,
    atol: torch.Tensor | None = None,
    rtol: torch.Tensor | None = None,
    **_: object,
) -> Any:
    """The decomposition of `torch.linalg.pinv`."""
    if x.is_complex() or not x.numel():
        return NotImplemented
    if atol is None:
        atol = x.new_zeros(())
    if rtol is None:
        rtol = torch.full_like(atol, max(x.shape[-2:]) * torch.finfo(x.dtype).eps)
        rtol = torch.where(atol > 0, 0.0, rtol).to(x.dtype)
    u, values, vh = torch.linalg.svd(x, full_matrices=False)
    least = torch.maximum(atol.unsqueeze(-1), rtol.unsqueeze(-1) * values[..., :1])
    inverse = torch.where(values > least, values.reciprocal(), 0.0).to(x.dtype)
    return vh.mT @ (inverse.unsqueeze(-1) * u.mT)
