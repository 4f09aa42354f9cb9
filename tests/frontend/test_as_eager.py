"""Models whose code for a tracer fails where what eager PyTorch runs does not, and modules that a forward moves to another type."""

import pytest
import torch
from torch import nn

import monotile
from monotile.errors import CaptureError
from tests.frontend.against import check

T = torch.Tensor


class Masked(nn.Module):
    """As T5s of transformers: a mask of ones is left out while traced, and used."""

    def forward(self, x: T, mask: T | None = None) -> T:
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones(x.shape[:1])
        return x * mask[:, None]  # pyright: ignore[reportOptionalSubscript]


class Lean(nn.Module):
    """Its way for a tracer is another, and is traced."""

    def forward(self, x: T) -> T:
        return x + 1 if torch.compiler.is_exporting() else x + torch.zeros(()).item() + 1


class Wrong(nn.Module):
    def forward(self, x: T) -> T:
        told = torch.compiler.is_compiling()
        raise ValueError("traced" if told else "run")


def test_what_eager_runs() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(monotile.compile(Masked(), (x,))(x), x)


def test_a_tracers_way_stays() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(monotile.compile(Lean(), (x,))(x), x + 1)


def test_the_first_error_is_raised() -> None:
    with pytest.raises(CaptureError, match="ValueError: traced"):
        monotile.compile(Wrong(), (torch.randn(3),))


class Router(nn.Module):
    """Its router computes in float32 from the first call on, as Switch Transformers'."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.norm, self.out = nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 8)

    def forward(self, x: T) -> T:
        self.router = self.router.to(torch.float32)
        self.norm.to(torch.float32)
        return self.out(self.norm(self.router(x.float())).softmax(-1).to(x.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_module_that_is_moved(dtype: torch.dtype) -> None:
    """The model that is compiled stays as it is."""
    torch.manual_seed(0)
    model = Router().to(dtype).eval().requires_grad_(False)
    x = torch.randn(3, 8, dtype=dtype)
    compiled = monotile.compile(model, (x,))
    assert model.router.weight.dtype is dtype
    torch.testing.assert_close(compiled(x), model(x))


class Bytes(nn.Module):
    """Masks of uint8, as in conditional random fields."""

    def forward(self, x: T, mask: T) -> tuple[T, T]:
        return torch.where(mask, x, -x), x.where(condition=mask, other=x + 1)


@pytest.mark.filterwarnings("ignore:where received a uint8 condition")
def test_masks_of_bytes() -> None:
    check(Bytes(), (torch.randn(3, 4), torch.randint(0, 2, (3, 4), dtype=torch.uint8)))
