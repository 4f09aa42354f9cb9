"""The matrix exponential, by scaling and squaring (Moler and Van Loan, 2003)."""

from typing import Any

import torch

# Of a matrix of 1-norm at most 1, the next term is below the rounding of float32, and of float64.
_TERMS = {torch.float32: 11, torch.float64: 18}
_SQUARINGS = 16  # at most: where more are needed, float32 has no bits left, or overflows


def matrix_exponential(x: torch.Tensor) -> Any:
    """The decomposition of `torch.linalg.matrix_exp`."""
    if x.dtype not in _TERMS or not x.numel():
        return NotImplemented
    norm = x.abs().sum(-2).amax(-1)[..., None, None]
    halvings = norm.clamp(min=1).log2().ceil().clamp(max=_SQUARINGS)
    scaled = x * torch.exp2(-halvings)
    one = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    found = one.expand_as(x)
    for k in range(_TERMS[x.dtype], 0, -1):
        found = one + scaled @ found / k
    for k in range(_SQUARINGS):
        found = torch.where(halvings > k, found @ found, found)
    return found
