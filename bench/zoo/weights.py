"""Random weights under which every parameter counts."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch


def build(make: Callable[[], torch.nn.Module], dtype: torch.dtype) -> torch.nn.Module:
    """What `make` gives, in eval mode, its parameters made in `dtype` from seed 0.

    Initialisations leave biases at zero and scales at one; here both are spread round those values, so that a
    model that drops or swaps one of them gives another answer. What a model computes in float32 whatever its
    dtype (rotary frequencies) stays so, other than under `module.to(dtype)`.
    """
    torch.manual_seed(0)
    with default_dtype(dtype):
        model = make().eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p), alpha=0.05)
    return model


@contextmanager
def default_dtype(dtype: torch.dtype) -> Generator[None, None, None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def tokens_of(vocabulary: int, count: int, *, first: int = 10, batch: int = 1) -> torch.Tensor:
    """Random token ids, none of them special."""
    return torch.randint(first, vocabulary, (batch, count))
