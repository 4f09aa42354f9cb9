"""What the small networks have in common."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.zoo.weights import default_dtype

Made = tuple[nn.Module, tuple[Tensor, ...]]
SMALL: dict[str, Callable[[torch.dtype], Made]] = {}


def small(make: Callable[[], Made]) -> Callable[[], Made]:
    """`make`, in SMALL as a function of the dtype that its floats are in; from seed 0, the model in eval mode."""

    def seeded(dtype: torch.dtype) -> Made:
        torch.manual_seed(0)
        with default_dtype(dtype):
            model, args = make()
        return model.eval().requires_grad_(False), args

    SMALL[make.__name__] = seeded
    return make


class Function(nn.Module):
    """`f(module, *args)`, with `parts` as its modules, parameters (a tensor of floats) and buffers."""

    def __init__(
        self, f: Callable[..., object], buffers: tuple[str, ...] = (), **parts: nn.Module | Tensor
    ) -> None:
        super().__init__()
        self._f = f
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                self.add_module(name, part)
            elif name in buffers:
                self.register_buffer(name, part)
            else:
                self.register_parameter(name, nn.Parameter(part, part.is_floating_point()))

    def forward(self, *args: Tensor) -> object:
        return self._f(self, *args)


def made(model: nn.Module, *shapes: tuple[int, ...]) -> Made:
    return model, tuple(torch.randn(shape) for shape in shapes)


def matrix(*shape: int) -> Tensor:
    return torch.randn(shape) / math.sqrt(shape[-1])
