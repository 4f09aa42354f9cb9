"""Random weights under which every parameter counts."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch.nn.modules.batchnorm import _BatchNorm as Norm  # pyright: ignore[reportPrivateUsage]


def build(make: Callable[[], torch.nn.Module], dtype: torch.dtype) -> torch.nn.Module:
    """What `make` gives, in eval mode, its parameters made in `dtype` from seed 0.

    Initialisations leave biases at zero and scales at one; here both are spread round those values, so that a
    model that drops or swaps one of them gives another answer. What a model computes in float32 whatever its
    dtype (rotary frequencies) stays so, other than under `module.to(dtype)`.
    """
    torch.manual_seed(0)
    with default_dtype(dtype):
        model = make().eval()
    spread(model)
    return model


@torch.no_grad()
def spread(model: torch.nn.Module) -> None:
    """Adds noise to all vectors among the parameters: biases and scales."""
    for p in model.parameters():
        if p.dim() == 1:
            p.add_(torch.randn_like(p), alpha=0.05)


@torch.no_grad()
def calibrate(model: torch.nn.Module, run: Callable[[], object]) -> None:
    """Gives batch normalisation the statistics of what `run`, a call of the model in float32, computes: activations of a hundred
    layers stay about one in size. It does nothing to a model without."""

    def measure(norm: torch.nn.Module, x: tuple[torch.Tensor]) -> None:
        assert isinstance(norm, Norm)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        others = [d for d in range(x[0].dim()) if d != 1]
        # Not all of the mean: on random images it is most of the value, so the difference would be rounding.
        norm.running_mean.copy_(x[0].mean(others) / 8)
        # Nor less than others': a channel that is 0 in these images would be magnified in others.
        squares = x[0].square().mean(others)
        norm.running_var.copy_(squares.clamp(min=squares.mean() / 16))

    norms = [m for m in model.modules() if isinstance(m, Norm)]
    hooks = [m.register_forward_pre_hook(measure) for m in norms]
    if hooks:
        run()
    for hook in hooks:
        hook.remove()


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
