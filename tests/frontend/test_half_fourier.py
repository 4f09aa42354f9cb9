"""Complex numbers of two halves, which PyTorch computes with on CUDA alone: against float64, of the same halves."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fft, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import monotile
from monotile.errors import CaptureError
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.ir.dtype import DType
from monotile.ir.verify import verify
from tests.frontend.against import Operators, close, run

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")
NORMS = ("backward", "ortho", "forward")
ROUNDED = 2e-3  # of two roundings to half
C32 = torch.complex32


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).half()


def pairs(z: Tensor) -> Tensor:
    return torch.view_as_real(z.resolve_conj()) if z.is_complex() else z


def right(
    functions: dict[str, Callable[..., Tensor]], *args: Tensor, tolerance: float = ROUNDED
) -> None:
    """By the evaluator: halves of what float64 gives."""
    model = Operators({name: lambda *x, f=f: pairs(f(*x)) for name, f in functions.items()})
    captured = capture(model, args)
    verify(captured.program)
    want = model(*(x.double() for x in args))
    for name, found in zip(want, run(captured, args, {}), strict=True):
        exact = want[name]
        scale = exact.abs().max().clamp(min=1e-3)
        close(
            found / scale.numpy().astype("float16"), (exact / scale.half()).half(), name, tolerance
        )


def made(x: Tensor, y: Tensor) -> Tensor:
    return torch.complex(x, y)


@pytest.mark.parametrize("n", [16, 12, 512, pytest.param(1031, marks=pytest.mark.wide)])
def test_one_dimension(n: int) -> None:
    functions: dict[str, Callable[..., Tensor]] = {}
    for norm in NORMS:
        for f in (fft.fft, fft.ifft, fft.rfft, fft.ihfft):
            functions[f"{f.__name__} {norm}"] = lambda x, y, f=f, norm=norm: f(x, norm=norm)
        for f in (fft.fft, fft.ifft, fft.irfft, fft.hfft):
            functions[f"{f.__name__} {norm} of pairs"] = lambda x, y, f=f, norm=norm: f(
                made(x, y), norm=norm
            )
    right(functions, random(3, n), random(3, n) + 1)


def test_several_dimensions() -> None:
    functions: dict[str, Callable[..., Tensor]] = {
        f.__name__: partial(f, norm="ortho")
        for f in (fft.fft2, fft.ifft2, fft.rfft2, fft.fftn, fft.rfftn)
    }
    functions["back"] = lambda x: fft.irfftn(fft.rfftn(x) * 2, s=x.shape)
    right(functions, random(4, 8, 16))


def test_spectrograms() -> None:
    window = torch.hann_window(16)

    def there(x: Tensor, **named: Any) -> Tensor:
        held = window.to(x.dtype)
        return torch.stft(x, 16, 4, window=held, return_complex=True, **named)

    def back(x: Tensor, length: int | None) -> Tensor:
        return torch.istft(there(x), 16, 4, window=window.to(x.dtype), length=length)

    functions: dict[str, Callable[..., Tensor]] = {
        "there": there,
        "normalized": partial(there, normalized=True, center=False),
        "both sides": partial(there, onesided=False),
        "magnitudes": lambda x: there(x).abs(),
        "powers": lambda x: there(x).abs().pow(2) / 16,
        "back": partial(back, length=128),
    }
    right(functions, random(2, 128), tolerance=2 * ROUNDED)


def test_arithmetic() -> None:
    functions: dict[str, Callable[..., Tensor]] = {
        "times": lambda x, y: made(x, y) * made(y, x),
        "times a number": lambda x, y: made(x, y) * (1 - 2j),
        "times reals": lambda x, y: made(x, y) * y,
        "plus": lambda x, y: made(x, y) + made(y, y) - x,
        "scaled": lambda x, y: torch.sub(made(x, y), made(y, y), alpha=2),
        "over": lambda x, y: made(x, y) / (made(y, x) + 3),
        "over reals": lambda x, y: made(x, y) / (y + 4),
        "imaginary": lambda x, y: x * 1j + y,
        "abs": lambda x, y: made(x, y).abs(),
        "angle": lambda x, y: made(x, y).angle(),
        "exp": lambda x, y: made(x, y).exp(),
        "log": lambda x, y: made(x, y).log(),
        "polar": lambda x, y: torch.polar(y, x),
        "powers": lambda x, y: made(x, y) ** 2 + made(x, y).pow(1.5),
        "sgn": lambda x, y: made(x, y).sgn() - made(x, y).conj(),
        "parts": lambda x, y: made(x, y).real - made(x, y).imag,
        "sum": lambda x, y: made(x, y).sum(-1),
        "moved": lambda x, y: torch.cat([made(x, y).mT, made(y, x)[:1, :1].expand(6, 3)], 0),
        "interleaved": lambda x, y: torch.view_as_complex(torch.stack([x, y], -1)) * 2,
        "matmul": lambda x, y: made(x, y) @ made(y, x).mT,
    }
    right(functions, random(3, 6), random(3, 6).roll(1) + 1, tolerance=4 * ROUNDED)


class Mixed(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = torch.complex(x, x)
        return {
            "wide": torch.view_as_real(z.to(torch.complex64)),
            "with float32": torch.view_as_real(z * x.float()),
            "narrow": torch.view_as_real(torch.complex(x.float(), x.float()).to(C32)),
            "real": z.real,
            "as real": torch.view_as_real(z * 2),
            "abs": z.abs(),
            "back": torch.fft.irfft(torch.fft.rfft(x)),
        }


def test_types() -> None:
    """As PyTorch has them: halves of halves, and what is wider with what is wider."""
    captured = capture(Mixed(), (random(2, 8),))
    types = [t.dtype for t in captured.program.outputs]
    assert types == [DType.F32, DType.F32, DType.F16, DType.F16, DType.F16, DType.F16, DType.F16]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_traced_on_any_device(device: str) -> None:
    """On CUDA PyTorch itself traces the transforms, with complex32 as their results."""

    class Filter(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(x) * 2j)

    with FakeTensorMode():
        x = torch.empty(2, 16, dtype=torch.float16, device=device)
    exported = export(Filter(), (x,))
    values = [n.meta.get("val") for n in exported.graph.nodes]
    wide = any(v.dtype is torch.complex64 for v in values if isinstance(v, Tensor))
    assert wide == (device == "cpu")
    x = random(2, 16)
    (found,) = run(capture(exported), (x,), {})
    close(found, Filter()(x.double()).half(), tolerance=ROUNDED)


def test_compiled() -> None:
    class Denoise(nn.Module):
        """Masks a spectrogram and goes back."""

        window: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("window", torch.hann_window(64))
            self.mask = nn.Linear(33, 33)

        def forward(self, x: Tensor) -> Tensor:
            z = torch.stft(x, 64, 16, window=self.window, return_complex=True)
            z = z * self.mask(z.abs().mT).mT.sigmoid()
            return torch.istft(z, 64, 16, window=self.window, length=x.shape[-1])

    torch.manual_seed(0)
    model, x = Denoise().eval().half().requires_grad_(False), random(2, 256)
    fast = monotile.compile(model, (x,), target="cpu")
    assert fast.kernels == 1
    found, want = fast(x), model.double()(x.double())
    assert found.dtype is torch.float16
    torch.testing.assert_close(found.double(), want, rtol=1e-2, atol=5e-3)
    assert monotile.compile(model.half(), (x,), target="cuda:h100").ptx


def test_what_pytorch_refuses() -> None:
    class Fourier(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.rfft(x).abs()

    with pytest.raises(CaptureError, match=r"test_half.*Unsupported dtype BFloat16.*x.float"):
        capture(Fourier(), (random(2, 8).bfloat16(),))
