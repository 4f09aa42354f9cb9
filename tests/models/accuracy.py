"""How far a compiled model is from float64, beside how far eager PyTorch is."""

import copy
import importlib
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from monotile.examples import EXAMPLES

Arguments = tuple[torch.Tensor, ...]


def example(name: str, dtype: torch.dtype, **size: int) -> tuple[nn.Module, Arguments]:
    module, _, function = EXAMPLES[name].partition(":")
    made: tuple[nn.Module, Arguments] = getattr(importlib.import_module(module), function)(
        dtype, **size
    )
    return made


def fresh(args: Arguments, seed: int) -> Arguments:
    """Random arguments like `args`: integers below 1000, floats from the normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    out: list[torch.Tensor] = []
    for x in args:
        if x.is_floating_point():
            out.append(torch.randn(x.shape, generator=generator).to(x))
        else:
            out.append(torch.randint(0, 1000, x.shape, generator=generator).to(x))
    return tuple(out)


def tensors(result: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


def exact(model: nn.Module, args: Arguments) -> list[torch.Tensor]:
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        return tensors(wide(*(x.double() if x.is_floating_point() else x for x in args)))


def error(found: Any, expected: list[torch.Tensor]) -> float:
    """The largest ‖found - expected‖ / ‖expected‖ over the results."""
    worst = 0.0
    for x, y in zip(tensors(found), expected, strict=True):
        assert x.shape == y.shape
        worst = max(worst, float((x.double() - y).norm() / y.norm().clamp_min(1e-300)))
    return worst
