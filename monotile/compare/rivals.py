"""Other ways to run a PyTorch module: one small function each, from a module to something that calls it.

On a GPU every one is also captured in a CUDA graph, by the process that times it, so none captures for itself.
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
