"""Operators that `torch.library.custom_op` makes of Python functions."""

import pytest
import torch

from monotile.errors import UnsupportedOperatorError
from monotile.frontends.torch.capture import capture
from tests.frontend.against import Of, check

T = torch.Tensor


@torch.library.custom_op("monotile_tests::scale", mutates_args=())
def scale(x: T, factor: float, weight: T | None = None) -> T:
    y = x * factor
    return y if weight is None else y @ weight


@scale.register_fake
def _(x: T, _: float, weight: T | None = None) -> T:
    return torch.empty_like(x) if weight is None else x.new_empty(len(x), weight.shape[1])


@torch.library.custom_op("monotile_tests::several", mutates_args=())
def several(x: T) -> tuple[T, list[T]]:
    return x.sum(0), [x + 1, torch.ops.monotile_tests.scale(x, 3.0)]


@several.register_fake
def _(x: T) -> tuple[T, list[T]]:
    return x.new_empty(x.shape[1:]), [torch.empty_like(x), torch.empty_like(x)]


@torch.library.custom_op("monotile_tests::elsewhere", mutates_args=(), device_types="cuda")
def elsewhere(x: T) -> T:
    raise AssertionError(x)


@elsewhere.register_kernel("cpu")
def _(x: T) -> T:
    return x.cos()


@elsewhere.register_fake
def _(x: T) -> T:
    return torch.empty_like(x)


@torch.library.custom_op("monotile_tests::in_numpy", mutates_args=())
def in_numpy(x: T) -> T:
    return torch.from_numpy(x.numpy() + 1)


@in_numpy.register_fake
def _(x: T) -> T:
    return torch.empty_like(x)


@torch.library.custom_op("monotile_tests::doubled", mutates_args={"x"})
def doubled(x: T) -> None:
    x.mul_(2)


def test_what_their_functions_compute() -> None:
    def model(x: T) -> tuple[T, ...]:
        total, (more, scaled) = several(x)
        return total, more, scaled, scale(x, 2.0, x.T) + 1, elsewhere(x) * 2

    check(Of(model), (torch.randn(3, 4),))


def updated(x: T) -> T:
    y = x.clone()
    doubled(y)
    return y


@pytest.mark.parametrize(("function", "name"), [(in_numpy, "in_numpy"), (updated, "functionalized")])  # fmt: skip
def test_others_are_unsupported(function: object, name: str) -> None:
    assert callable(function)
    with pytest.raises(UnsupportedOperatorError, match=name):
        capture(Of(function), (torch.randn(3),))
