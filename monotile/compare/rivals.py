"""Other ways to run a PyTorch module: one function each, which takes a module and returns a callable.

On a GPU the timing process captures each of them in a CUDA graph, so none does so itself.
"""

from collections.abc import Callable
from typing import Any

import torch

Run = Callable[..., Any]


def _eager(model: torch.nn.Module) -> Run:
    return model


def _compile(model: torch.nn.Module) -> Run:
    return torch.compile(model)


def _max_autotune(model: torch.nn.Module) -> Run:
    return torch.compile(model, mode="max-autotune-no-cudagraphs")


RIVALS: dict[str, Callable[[torch.nn.Module], Run]] = {
    "eager": _eager,
    "compile": _compile,
    "max-autotune": _max_autotune,
}
