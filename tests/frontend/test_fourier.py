"""Fourier transforms against PyTorch in float64."""

from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch
from torch import Tensor, fft, nn

import monotile
from monotile.analysis.contraction import in_tf32
from monotile.errors import MonotileError
from monotile.frontends.torch.capture import capture, functional, to_program
from monotile.frontends.torch.export import export
from monotile.frontends.torch.tf32 import Tf32
from monotile.ir.program import Compute
from monotile.runtime.accuracy import error
from tests.codegen.emulate_model import Emulated
from tests.frontend import sized
from tests.frontend.against import Operators, check, check_operators

ERROR = 6e-7  # ||found - exact|| / ||exact|| in float32
NORMS = ("backward", "ortho", "forward")
Functions = Mapping[str, Callable[..., Tensor]]


def real(z: Tensor) -> Tensor:
    return torch.view_as_real(z.resolve_conj()) if z.is_complex() else z


class Transforms(nn.Module):
    """Of complex numbers, and of their real parts."""

    def __init__(self, of_complex: Functions, of_real: Functions) -> None:
        super().__init__()
        self.of_complex, self.of_real = of_complex, of_real

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = torch.complex(x, y)
        found = {name: real(f(z)) for name, f in self.of_complex.items()}
        return {**found, **{name: real(f(x)) for name, f in self.of_real.items()}}


def right(model: nn.Module, *args: Tensor) -> None:
    """On the CPU; each result by itself."""
    found = monotile.compile(model.eval(), args, target="cpu")(*args)
    want = model(*(x.double() for x in args))
    assert found.keys() == want.keys()
    for name, x in want.items():
        assert found[name].dtype == torch.float32
        assert error(found[name], x) < ERROR, name


def random(*shape: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=made), torch.randn(shape, generator=made)


@pytest.mark.parametrize(
    "n", [1, 9, *(pytest.param(k, marks=pytest.mark.wide) for k in (2, 8, 13))]
)
def test_one_dimension(n: int) -> None:
    of_complex: dict[str, Callable[..., Tensor]] = {}
    of_real: dict[str, Callable[..., Tensor]] = {}
    for norm in NORMS:
        for f in (fft.fft, fft.ifft):
            of_complex[f"{f.__name__} {norm}"] = partial(f, norm=norm)
            of_real[f"{f.__name__} {norm} of real"] = partial(f, norm=norm)
        for f in (fft.rfft, fft.ihfft):
            of_real[f"{f.__name__} {norm}"] = partial(f, norm=norm)
        for f in (fft.irfft, fft.hfft):
            for length in (2 * n - 1, max(2 * n - 2, 1)):
                of_complex[f"{f.__name__} {norm} {length}"] = partial(f, n=length, norm=norm)
    right(Transforms(of_complex, of_real), *random(3, n))


@pytest.mark.parametrize(
    "n", [257, 400, 1018, *(pytest.param(k, marks=pytest.mark.wide) for k in (768, 1031, 2062))]
)
def test_long(n: int) -> None:
    """A prime, two lengths that are split, one of them by a prime, and one that is convolved with a chirp."""
    of_complex: Functions = {
        "fft": fft.fft,
        "ifft": partial(fft.ifft, dim=0, n=n),
        "irfft even": partial(fft.irfft, n=n - n % 2),
        "irfft odd": partial(fft.irfft, n=n - 1 + n % 2),
    }
    of_real: Functions = {
        "rfft": fft.rfft,
        "fft of real": fft.fft,
        "rfft cut": partial(fft.rfft, n=n - 8),
    }
    right(Transforms(of_complex, of_real), *random(2, n))


@pytest.mark.parametrize("n", [400, 513, 2062])
def test_phases_of_real_numbers(n: int) -> None:
    """Those of the mean, and of the highest frequency of an even length, are 0 or pi, as in PyTorch."""
    ends = [0] if n % 2 else [0, n // 2]
    functions: Functions = {
        f.__name__: lambda x, f=f: f(x)[..., ends].angle() for f in (fft.rfft, fft.fft)
    }
    alternating = torch.tensor([1.0, -1.0]).repeat(n)[:n]
    x = random(n)[0]
    check_operators(functions, torch.stack([x - 1, x - alternating]))


@pytest.mark.wide
@pytest.mark.parametrize("n", [66049, pytest.param(131072, marks=pytest.mark.wide)])
def test_very_long(n: int) -> None:
    """Whose factors are split too."""
    right(
        Transforms({"fft": fft.fft, "irfft": partial(fft.irfft, n=n)}, {"rfft": fft.rfft}),
        *random(1, n),
    )


@pytest.mark.wide
def test_several_dimensions() -> None:
    of_complex: dict[str, Callable[..., Tensor]] = {}
    of_real: dict[str, Callable[..., Tensor]] = {}
    for norm in ("forward", "ortho"):  # without a word below
        for f in (fft.fft2, fft.ifft2, fft.irfft2, fft.hfft2):
            of_complex[f"{f.__name__} {norm}"] = partial(f, norm=norm)
        for f in (fft.fft2, fft.rfft2, fft.ihfft2):
            of_real[f"{f.__name__} {norm} of real"] = partial(f, norm=norm)
    for f in (fft.fftn, fft.ifftn, fft.irfftn, fft.hfftn):
        of_complex[f.__name__] = f
        of_complex[f"{f.__name__} padded and cut"] = partial(f, s=(8, 5), dim=(0, -2))
    for f in (fft.rfftn, fft.ihfftn):
        of_real[f.__name__] = f
        of_real[f"{f.__name__} padded and cut"] = partial(f, s=(2, 11), dim=(1, 0), norm="ortho")
    right(Transforms(of_complex, of_real), *random(4, 7, 6))


def test_around_them() -> None:
    def filtered(x: Tensor) -> Tensor:
        z = fft.fftshift(fft.fft2(x), dim=(-2, -1))
        return fft.ifft2(fft.ifftshift(z * torch.hann_window(10, dtype=x.dtype), dim=(-2, -1))).real

    def moved(x: Tensor) -> Tensor:
        a, b = fft.rfft(x).chunk(2, dim=0)
        z = torch.where(a.real[:, :, :1] > 0, a, b).permute(2, 0, 1)
        z = torch.cat([z[[2, 0]], nn.functional.pad(z, (1, 2))[..., 1:-2], z.expand(6, 2, 8)], 0)
        return real(z.flatten(1)[:, None].mean(-1) + z.sum((1, 2))[:, None])

    def written(x: Tensor) -> Tensor:
        z = torch.zeros(
            4, 8, 6, dtype=torch.complex64 if x.dtype == torch.float32 else torch.complex128
        )
        z[:, 1:3, :2] = fft.rfft(x)[:, :2, :2]
        z[2, 0] = 1 - 2j
        return fft.irfft(z, n=11)

    functions: Functions = {
        "filtered": filtered,
        "moved": moved,
        "written": written,
        "polar": lambda x: real(torch.polar(fft.rfft(x).abs(), fft.rfft(x).angle())),
        "divided": lambda x: real(fft.rfft(x) / (fft.rfft(x).conj() + 9)),
        "powers": lambda x: real(fft.rfft(x) ** 2 + fft.rfft(x).square().sqrt().reciprocal().sgn()),
        "products": lambda x: real(fft.rfft(x) @ fft.rfft(x).mH + 1j),
    }
    (x, _) = random(4, 8, 10)
    right(Operators(functions), x)


def test_spectrograms() -> None:
    """There and back: windows are laid over each other."""

    def back(x: Tensor, center: bool, window: Tensor) -> Tensor:
        kept = window.to(x.dtype)
        z = torch.stft(x, 16, 4, window=kept, center=center, return_complex=True)
        return torch.istft(
            z * (1 + 1j), 16, 4, window=kept, center=center, length=100 if center else None
        )

    functions: Functions = {
        "plain": partial(back, center=True, window=torch.hann_window(16)),
        "square window": partial(back, center=False, window=torch.ones(16)),
        "narrow": lambda x: torch.stft(
            x, 20, 7, 15, torch.ones(15, dtype=x.dtype), normalized=True, return_complex=True
        ).abs(),
        "both sides": lambda x: real(
            torch.stft(
                x,
                12,
                onesided=False,
                window=torch.hamming_window(12, dtype=x.dtype),
                return_complex=True,
            )
        ),
    }
    (x, _) = random(2, 100)
    right(Operators(functions), x)


def test_unfold_backward() -> None:
    x = torch.randn(3, 5, 6)
    functions: Functions = {
        f"{step}": partial(
            torch.ops.aten.unfold_backward, input_sizes=[3, 30], dim=1, size=6, step=step
        )
        for step in (1, 2, 4, 6)
    }
    check(Operators(functions), (x,))


def test_half_of_real_results() -> None:
    """Imaginary parts of what is its own mirror image count for nothing."""
    z = torch.view_as_real(fft.rfft(random(2, 6)[0], dim=-1)).clone()
    z[:, 0, 1] += 100
    z[:, -1, 1] += 100

    class Back(nn.Module):
        def forward(self, z: Tensor) -> dict[str, Tensor]:
            return {"x": fft.irfft(torch.view_as_complex(z))}

    right(Back(), z)


def test_tables_keep_their_digits() -> None:
    """Whatever PyTorch allows of other products."""
    (x, _) = random(4, 32)
    model = Operators(
        {"x": lambda x: fft.irfft(fft.rfft(x) @ torch.ones(17, 17, dtype=torch.cfloat))}
    )
    exported = export(model, (x,))
    program = to_program(exported, functional(exported), tf32=Tf32(True, True)).program
    marked = [s.out.name for s in program.body if isinstance(s, Compute) and in_tf32(s)]
    assert len(marked) == 4
    assert all(name.startswith("matmul") for name in marked)


class Mixing(nn.Module):
    """The mixing of FNet, and a feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        mixed = fft.fft(fft.fft(h.to(torch.promote_types(h.dtype, torch.float32)), dim=-1), dim=-2)
        return nn.functional.gelu(self.layer(self.norm(h + mixed.real)))


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: complex weights for the low frequencies."""

    def __init__(self, inputs: int, outputs: int, modes: int) -> None:
        super().__init__()
        self.modes, self.outputs = modes, outputs
        shape = (2, inputs, outputs, modes, modes)
        self.weights = nn.Parameter(torch.rand(shape, dtype=torch.cfloat) / (inputs * outputs))

    def forward(self, x: Tensor) -> Tensor:
        z, m = fft.rfft2(x), self.modes
        out = torch.zeros(len(x), self.outputs, *z.shape[-2:], dtype=self.weights.dtype)
        for k, rows in enumerate((slice(m), slice(-m, None))):
            kept = z[:, :, rows, :m]
            out[:, :, rows, :m] = torch.einsum("bixy,ioxy->boxy", kept, self.weights[k])
        return fft.irfft2(out, s=x.shape[-2:])


class LogMel(nn.Module):
    def __init__(self, n: int, hop: int, bands: int) -> None:
        super().__init__()
        self.n, self.hop = n, hop
        self.register_buffer("window", torch.hann_window(n))
        self.register_buffer("filters", torch.rand(bands, n // 2 + 1))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.stft(x, self.n, self.hop, window=self.window, return_complex=True)
        return torch.log10((self.filters @ z.abs() ** 2).clamp(min=1e-10))


def networks() -> list[tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    return [
        (nn.Sequential(*(Mixing(48) for _ in range(3))), torch.randn(2, 10, 48)),
        (nn.Sequential(Spectral(3, 4, 4), nn.GELU()), torch.randn(2, 3, 16, 15)),
        (LogMel(400, 160, 20), torch.randn(2, 1200)),
    ]


def wide(model: nn.Module, x: Tensor) -> Tensor:
    """The answer in float64; the model stays as it is."""
    held = {
        n: t.to(torch.complex128 if t.is_complex() else torch.float64)
        for n, t in model.state_dict().items()
    }
    return torch.func.functional_call(model, held, (x.double(),))


@pytest.mark.parametrize("k", range(3))
def test_networks(k: int) -> None:
    model, x = networks()[k]
    fast = monotile.compile(model.eval().requires_grad_(False), (x,), target="cpu")
    assert fast.kernels == 1
    assert error(fast(x), wide(model, x)) < 2 * ERROR
    assert monotile.compile(model, (x,), target="cuda:h100").ptx


@pytest.mark.parametrize("k", [2, pytest.param(1, marks=pytest.mark.wide)])
def test_networks_emulated(k: int) -> None:
    model, x = networks()[k]
    (found,) = Emulated(model.eval().requires_grad_(False), (x,))(x)
    assert error(found, wide(model, x)) < 2 * ERROR


def test_complex_parameters(tmp_path: object) -> None:
    """They stay where they are, and others can take their place."""
    model, x = networks()[1]
    fast = monotile.compile(model.eval().requires_grad_(False), (x,), target="cpu")
    for p in model.parameters():
        p *= 1 + 1j
    assert error(fast(x), wide(model, x)) < 2 * ERROR
    other = nn.Sequential(Spectral(3, 4, 4), nn.GELU()).requires_grad_(False)
    fast.load_parameters(other.state_dict())
    assert error(fast(x), wide(other, x)) < 2 * ERROR
    fast.save(f"{tmp_path}/model")
    assert error(monotile.load(f"{tmp_path}/model")(x), wide(other, x)) < 2 * ERROR
    again = monotile.compile(other, (x,), target="cpu")  # of the disk cache
    assert error(again(x), wide(other, x)) < 2 * ERROR


class Open(nn.Module):
    """Along dimensions whose sizes a call decides."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        n, z = x.shape[-1], torch.complex(x, y)
        norms = [real(f(v, norm=m)) for m in NORMS for f, v in ((fft.rfft, x), (fft.ifft, z))]
        long = fft.irfft(fft.rfft(x, n=2 * n) * fft.rfft(y, n=2 * n), n=2 * n)[..., :n]
        both = fft.irfft2(fft.rfft2(x), s=x.shape[-2:], norm="ortho")
        return (*norms, long, both, fft.irfft(fft.rfft(x), n=n), fft.fft(fft.fft(x), dim=-2).real)


def test_open_sizes() -> None:
    def args(b: int, n: int) -> tuple[Tensor, ...]:
        return random(b, n)

    dims = {0: torch.export.Dim("b", min=1, max=5), 1: torch.export.Dim("n", min=2, max=16)}
    sized.check(Open(), args, (dims, dims), [(1, 2), (3, 7), (5, 16), (1, 13)])


def test_what_is_refused() -> None:
    class Fourier(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return fft.rfft(x).abs()

    dim = torch.export.Dim("n", min=4, max=10000)
    with pytest.raises(MonotileError, match=r"_fft_r2c.*size that the call decides, up to 10000.*test_fourier"):  # fmt: skip
        capture(Fourier(), (torch.randn(3, 16),), dynamic_shapes=({1: dim},))


def test_the_other_dimensions_may_be_of_any_size() -> None:
    class Fourier(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return fft.irfft(fft.rfft(x) * 2j)

    rows = torch.export.Dim("rows", min=2, max=8)
    (x, _) = random(8, 20)
    fast = monotile.compile(Fourier(), (x,), target="cpu", dynamic_shapes=({0: rows},))
    assert error(fast(x[:3]), Fourier()(x[:3].double())) < ERROR
