"""Tensors that are filled with a scalar tensor."""

import torch

from tests.frontend.against import check_operators

T = torch.Tensor


def test_a_tensor_fills_others() -> None:
    check_operators(
        {
            "new_full": lambda x, n: x.half().new_full((2, 3), x[0, 1]),
            "full": lambda x, n: torch.full((4,), x[1, 1]) + 1,
            "of integers": lambda x, n: torch.full((2,), n[1]),
            "of a truth": lambda x, n: torch.full((2,), n[1] > 3),
            "of a type": lambda x, n: torch.full((3,), n[0], dtype=torch.float16),
            "by name": lambda x, n: torch.full_like(x, fill_value=n[2]),
            "a number": lambda x, n: torch.full_like(x, 3),
        },
        torch.randn(2, 3),
        torch.arange(4, dtype=torch.int32),
    )
