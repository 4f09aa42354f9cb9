"""`torch.linalg.lstsq` while a model is traced: PyTorch's exporter gives up on it, as the shape of its residuals depends on the rank.

The solution of matrices of full rank, by QR factorisation (Golub and Van Loan, 5.3.2); with fewer rows than columns, that of the least norm. The
other three results are None.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from monotile.frontends.torch.tracing.overrides import Override

T = torch.Tensor


class _LeastSquares(NamedTuple):
    """As `torch.return_types.linalg_lstsq`."""

    solution: T
    residuals: None = None
    rank: None = None
    singular_values: None = None


def _lstsq(_: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> _LeastSquares:
    return _solved(*args[:2], **{n: x for n, x in named.items() if n not in ("rcond", "driver")})


def _solved(input: T, b: T) -> _LeastSquares:  # the names are PyTorch's
    vector = b.ndim == 1 or (b.ndim == input.ndim - 1 and b.shape == input.shape[:-1])
    right = b.unsqueeze(-1) if vector else b
    if input.shape[-2] >= input.shape[-1]:
        q, r = torch.linalg.qr(input)
        found = torch.linalg.solve_triangular(r, q.mT @ right, upper=True)
    else:
        q, r = torch.linalg.qr(input.mT)
        found = q @ torch.linalg.solve_triangular(r.mT, right, upper=False)
    return _LeastSquares(found.squeeze(-1) if vector else found)


LEAST_SQUARES: Mapping[str, Override] = {"linalg_lstsq": _lstsq}
