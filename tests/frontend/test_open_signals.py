"""Windows, frequencies, inverse Fourier transforms, triangles and Kronecker products of sizes that a call decides."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from tests.frontend.sized import Over, check

T = torch.Tensor
HANN, NARROW = torch.hann_window(8), torch.hamming_window(6)


def spectrum(x: T, window: T, **named: bool) -> T:
    signal = F.pad(x[..., 0], (8, 8))
    return torch.stft(signal, 8, 2, window.shape[0], window=window, return_complex=True, **named)


# Of x: [2, length, 4].
CASES: dict[str, Callable[[T], object]] = {
    "frequencies": lambda x: (torch.fft.fftfreq(x.shape[1]), torch.fft.rfftfreq(x.shape[1], d=0.5)),
    "hann": lambda x: (torch.hann_window(x.shape[1]), torch.hann_window(x.shape[1], periodic=False, dtype=torch.float64)),
    "hamming": lambda x: (torch.hamming_window(x.shape[1]), torch.hamming_window(x.shape[1], False, 0.6, 0.3), torch.hamming_window(x.shape[1], periodic=True, alpha=0.5)),
    "blackman": lambda x: (torch.blackman_window(x.shape[1]), torch.blackman_window(x.shape[1], periodic=False)),
    "bartlett": lambda x: (torch.bartlett_window(x.shape[1]), torch.bartlett_window(x.shape[1], False)),
    "inverse": lambda x: torch.istft(spectrum(x, HANN), 8, 2, window=HANN, length=x.shape[1] + 14),
    "inverse_narrow": lambda x: spectrum(x, NARROW).istft(8, 2, 6, NARROW, length=x.shape[1] + 17),
    "inverse_normalized": lambda x: torch.istft(spectrum(x, HANN, normalized=True, onesided=False), 8, 2, window=HANN, normalized=True, onesided=False, length=x.shape[1] + 16),
    "inverse_from_the_start": lambda x: torch.istft(spectrum(x, torch.ones(8), center=False), 8, 2, window=torch.ones(8), center=False, length=x.shape[1] + 9),
    "powers": lambda x: (torch.logspace(-1, 2, x.shape[1]), torch.logspace(0, 3, x.shape[1], base=2.0)),
    "kron": lambda x: (torch.kron(x[0], torch.tensor([[1.0, 2.0], [3.0, 4.0]])), torch.kron(torch.eye(2), x), torch.kron(x[0, :, 0], x[1])),
    "triangles": lambda x: (torch.tril_indices(x.shape[1], x.shape[1]), torch.triu_indices(x.shape[1], x.shape[1]), torch.tril_indices(x.shape[1], x.shape[1], -1, dtype=torch.int32)),
    "pairs": lambda x: (x @ x.mT)[:, *torch.triu_indices(x.shape[1], x.shape[1], offset=1)],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_of_a_size(name: str) -> None:
    def make(n: int) -> tuple[T, ...]:
        return (torch.randn(2, n, 4, generator=torch.Generator().manual_seed(n)),)

    dim = Dim("length", min=1, max=9)
    check(Over(CASES[name]), make, ({1: dim},), [(n,) for n in (1, 2, 3, 4, 8, 9)])
