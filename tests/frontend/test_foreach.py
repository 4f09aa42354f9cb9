"""Operators on lists of tensors."""

from collections.abc import Callable
from typing import Any

import torch

from tests.frontend.against import check_operators

T = torch.Tensor


def _in_place(change: Callable[[list[T]], Any]) -> Callable[[T, T], list[T]]:
    def changed(x: T, y: T) -> list[T]:
        made = [x.clone(), y.clone()]
        change(made)
        return made

    return changed


def test_each_of_a_list() -> None:
    check_operators(
        {
            "number": lambda x, y: torch._foreach_mul([x, y], 2.0),
            "numbers": lambda x, y: torch._foreach_div([x, y], [2.0, 3.0]),
            "tensor": lambda x, y: torch._foreach_mul([x, y], x.sum()),
            "tensors": lambda x, y: torch._foreach_add([x, y], [y[:1], y[:, :1]], alpha=2),
            "one": lambda x, y: torch._foreach_sqrt(torch._foreach_abs([x, y])),
            "norm": lambda x, y: torch._foreach_norm([x, y]),
            "max": lambda x, y: torch._foreach_max([x, y]),
            "power": lambda x, y: torch._foreach_pow(2.0, [x, y]),
            "maximum": lambda x, y: torch._foreach_maximum([x, y], 0.5),
            "lerp": lambda x, y: torch._foreach_lerp([x, x], [y[:1], x], 0.25),
            "addcmul": lambda x, y: torch._foreach_addcmul([x, y], [x, y], [x, y], [0.5, 2.0]),
            "add_": _in_place(lambda xs: torch._foreach_add_(xs, 1.0)),
            "addcdiv_": _in_place(
                lambda xs: torch._foreach_addcdiv_(xs, xs, [x.exp() for x in xs], value=-0.5)
            ),
            "zero_": _in_place(lambda xs: torch._foreach_zero_(xs)),
            "copy_": _in_place(lambda xs: torch._foreach_copy_(xs, [x * 2 for x in xs])),
        },
        torch.randn(2, 3),
        torch.randn(4, 3),
    )
