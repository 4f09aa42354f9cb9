"""Probes a language model with two tokens: whether it is causal, how it counts positions, and which tensors it keeps."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from monotile.errors import CaptureError

# Errors of models that do not accept their arguments.
FAULTS = (AttributeError, AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
SAME = 0.01  # the largest difference of logits of the same kernels, relative to their norm
EXACT = 0.005  # of other kernels, in float32
NARROW = 1.2  # in narrower types: 48 layers of Mamba with random weights differ by 0.23, and more on a GPU; unrelated logits by 1.4


def check_steps(model: nn.Module, steps: Tensor, whole: Tensor) -> None:
    """Raises CaptureError if tokens that are read one by one, with a cache, have other logits than tokens that are read together. steps,
    whole: the logits."""
    narrow = any(p.itemsize < 4 for p in model.parameters())
    if whole.isfinite().all() and not _near(steps, whole, NARROW if narrow else EXACT):
        raise CaptureError(
            f"{type(model).__name__} is not causal, or does not keep in the cache what it has to: tokens that are read one by one have other"
            " logits than together. Has its config is_decoder=True?"
        )


def takes_positions(model: nn.Module, whole: Tensor) -> bool:
    """Whether `model` takes position_ids, and by default counts from 0, so that explicit positions give the logits `whole`."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    positions = torch.arange(whole.shape[1], device=whole.device)[None]
    try:
        given = logits_of(model, whole.shape[1], position_ids=positions)
    except FAULTS:
        return False
    return _near(given, whole, SAME)


def logits_of(model: nn.Module, count: int, **more: Tensor) -> Tensor:
    """Logits of the tokens 0, 1, ... read together: [1, count, vocabulary]."""
    ids = torch.arange(count, device=next(model.parameters()).device)[None]
    return model(input_ids=ids, use_cache=False, **more).logits


def own_tensors(model: nn.Module) -> dict[str, tuple[int, int]]:
    """The tensors of the modules of `model` other than parameters, by name, with the number of in-place changes of each."""
    return {
        f"{at}.{n}": (id(x), x._version)
        for at, module in model.named_modules()
        for n, x in (*module.__dict__.items(), *module.named_buffers(recurse=False))
        if isinstance(x, Tensor)
    }


def numbers_asked(run: Callable[[], object]) -> int:
    """How often Python reads a number from a tensor in `run`."""
    with _Asked() as asked:
        run()
    return asked.count


class _Asked(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def _near(a: Tensor, b: Tensor, near: float) -> bool:
    a, b = a.double(), b.double()
    return bool((a - b).norm() <= near * b.norm())
