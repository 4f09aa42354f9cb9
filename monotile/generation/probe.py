"""What a language model says of itself, asked with three tokens: whether it is causal, how it counts positions, what it keeps."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from monotile.errors import CaptureError

NEAR = {torch.float32: 1e-3}  # how far the same logits may be apart, of their norm; TF32 is
NARROW = 0.02  # in narrower types
TOKENS = 3


def check_causal(model: nn.Module) -> None:
    """Raises CaptureError where a token's logits are others if tokens follow."""
    if not _near(_logits(model, 1), _logits(model, TOKENS)[:, :1]):
        raise CaptureError(
            f"{type(model).__name__} is not causal: what it says of a token depends on later ones. Has its config is_decoder=True?"
        )


def takes_positions(model: nn.Module) -> bool:
    """Whether `model` takes position_ids, and those that count from 0 are what it takes by itself."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    positions = torch.arange(TOKENS, device=next(model.parameters()).device)[None]
    try:
        given = _logits(model, TOKENS, position_ids=positions)
    except (AttributeError, AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError):  # fmt: skip
        return False
    return _near(_logits(model, TOKENS), given)


def own_tensors(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Tensors that the modules of `model` have besides parameters, by name: which, and how often each has changed."""
    return {
        f"{at}.{n}": (id(x), x._version)
        for at, module in model.named_modules()
        for n, x in (*module.__dict__.items(), *module.named_buffers(recurse=False))
        if isinstance(x, Tensor)
    }


def numbers_asked(run: Callable[[], object]) -> int:
    """How often Python asks a tensor for a number in `run`."""
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


def _logits(model: nn.Module, count: int, **more: Tensor) -> Tensor:
    ids = torch.arange(count, device=next(model.parameters()).device)[None]
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False, **more).logits


def _near(a: Tensor, b: Tensor) -> bool:
    near = NEAR.get(a.dtype, NARROW)
    a, b = a.double(), b.double()
    return bool((a - b).norm() <= near * b.norm())
