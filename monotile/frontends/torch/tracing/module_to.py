"""`module.to(dtype)` in a model's forward, as for a router that computes in float32, while the model is traced: PyTorch would swap the memory of
its parameters, and traced ones have none. Here the module holds the converted ones from then on; the graph converts them in each call.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor


@contextmanager
def modules_convert() -> Generator[None]:
    plain = nn.Module._apply  # pyright: ignore[reportPrivateUsage]

    def apply(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:  # fmt: skip
        if not any(isinstance(p, FakeTensor) for p in module.parameters()):
            return plain(module, fn, recurse)
        for m in module.modules() if recurse else [module]:
            for held in (m._parameters, m._buffers):  # pyright: ignore[reportPrivateUsage]
                _convert(held, fn)
        return module

    with patch.object(nn.Module, "_apply", apply):
        yield


def _convert(held: dict[str, Any], fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Applies `fn` to the tensors that a module holds, by name."""
    for name, x in held.items():
        if x is not None:
            held[name] = fn(x)
