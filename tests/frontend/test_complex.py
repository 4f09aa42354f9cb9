"""Complex numbers inside a graph, against PyTorch."""

import pytest
import torch
from torch import nn

import monotile
from monotile.errors import CaptureError, MonotileError
from monotile.frontends.torch.capture import capture
from tests.frontend.against import check


class Rotary(nn.Module):
    """Turns pairs of features by an angle for each position; the table is a constant, a buffer, or made in the graph."""

    def __init__(self, table: str) -> None:
        super().__init__()
        self.table = table
        angles = torch.outer(torch.arange(32), 1.0 / 10000 ** (torch.arange(8) / 8))
        self.register_buffer("angles", angles)
        self.held = torch.polar(torch.ones_like(angles), angles)
        self.register_buffer("buffer", torch.exp(1j * angles), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.polar(torch.ones_like(self.angles), self.angles)
        table = {"held": self.held, "buffer": self.buffer, "made": made}[self.table]
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = z * table[: x.shape[1]].view(1, x.shape[1], 1, -1)
        return torch.view_as_real(turned).flatten(3).type_as(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("table", ["held", "buffer", "made"])
def test_rotary(table: str, dtype: torch.dtype) -> None:
    check(Rotary(table), (torch.randn(2, 8, 3, 16).to(dtype),))


def test_rotary_compiles() -> None:
    model, x = Rotary("held"), torch.randn(2, 8, 3, 16)
    torch.testing.assert_close(monotile.compile(model, (x,), target="cpu")(x), model(x))
    torch.testing.assert_close(torch.compile(model, backend="monotile")(x), model(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arithmetic(dtype: torch.dtype) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            z = torch.complex(x, y) * (2 + 1j) + x - y * 1j
            w = torch.exp(z * 0.1) * torch.exp(1j * x) - 2 * z
            return torch.view_as_real(z), (-w).real, (w / 3).imag, w.abs(), (w / y).angle()

    check(Model(), (torch.randn(4, 6, dtype=dtype), torch.rand(4, 6, dtype=dtype) + 0.5))


def test_what_moves_elements() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
            z = torch.view_as_complex(x)
            c = torch.cat([z, z.conj()], -1)[..., ::2].transpose(0, 1)
            d = torch.stack([c, c.clone()])[:, i].unsqueeze(1).expand(-1, 2, -1, -1)
            return torch.view_as_real(d), d.sum(-1).real, d.flip(0).permute(3, 0, 1, 2).imag

    check(Model(), (torch.randn(3, 5, 2), torch.tensor([1, 0, 2])))


def test_what_it_does_not_do_is_refused() -> None:
    class Fourier(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.fft(x).abs()

    class Out(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.complex(x, x)

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.randn(4, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.table).real

    class Mixed(nn.Module):
        """The real tensor's imaginary part is zero, not itself."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([torch.complex(x, x), x]).imag

    class Dropped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.complex(x, x).to(torch.float32) + 1

    for model in (Mixed(), Dropped()):
        with pytest.raises(MonotileError, match="complex"):
            capture(model, (torch.randn(3, 4),))
    with pytest.raises(MonotileError, match=r"complex.*test_complex\.py"):
        capture(Fourier(), (torch.randn(3, 4),))
    with pytest.raises(CaptureError, match="is complex"):
        capture(Out(), (torch.randn(3, 4),))
    for model, x in (
        (Held(), torch.randn(3, 4)),
        (Fourier(), torch.randn(4, dtype=torch.complex64)),
    ):
        with pytest.raises(MonotileError, match="complex64"):
            capture(model, (x,))
