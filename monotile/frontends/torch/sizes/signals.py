"""Windows, frequencies and inverse short-time Fourier transforms of symbolic lengths, in terms of other operators."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from monotile.frontends.torch.loops.stacked import is_dynamic


def _frequencies(half: bool) -> Callable[..., Any]:
    """Those of a Fourier transform. half: of real numbers."""

    def found(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        if not is_dynamic(n):
            return None
        count = n // 2 + 1 if half else n
        k = torch.arange(count, device=device).to(dtype or torch.get_default_dtype())
        size = torch.full_like(k, n)
        k = k if half else torch.where(k < torch.ceil(size / 2), k, k - size)
        return k / (size * d)

    return found


def _window(*cosines: float) -> Callable[..., Any]:
    """A window that is the sum of `cosines`[j] * cos(2 pi j x), x from 0 to 1, with alternating signs."""

    def made(n: Any, periodic: bool = True, *parts: float, dtype: Any = None, device: Any = None, **named: Any) -> Any:  # fmt: skip
        if not is_dynamic(n):
            return None
        given = dict(zip(("alpha", "beta"), parts, strict=False)) | named
        factors = [given.get(x, c) for x, c in zip(("alpha", "beta"), cosines, strict=False)]
        x = _positions(n, periodic, dtype, device)
        total = sum(
            c * (-1) ** j * torch.cos(2 * math.pi * j * x)
            for j, c in enumerate((*factors, *cosines[2:]))
        )
        return torch.where(torch.full_like(x, n) == 1, 1.0, total)

    return made


def _bartlett(n: Any, periodic: bool = True, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:  # fmt: skip
    if not is_dynamic(n):
        return None
    x = _positions(n, periodic, dtype, device)
    return torch.where(torch.full_like(x, n) == 1, 1.0, 1 - (2 * x - 1).abs())


def _positions(n: Any, periodic: bool, dtype: Any, device: Any) -> torch.Tensor:
    """From 0 to 1; periodic: 1 is left out."""
    k = torch.arange(n, device=device).to(dtype or torch.get_default_dtype())
    return k / (torch.full_like(k, n) - (not periodic)).clamp(min=1)


def _istft(
    x: torch.Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: torch.Tensor | None = None,
    center: bool = True, normalized: bool = False, onesided: bool | None = None, length: Any = None, return_complex: bool = False,
) -> torch.Tensor | None:  # fmt: skip
    """With a symbolic `length`, of which PyTorch makes a number. That the window overlaps enough is not checked."""
    if not is_dynamic(length) or return_complex:
        return None
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    if window is None:
        window = torch.ones(width, dtype=x.real.dtype, device=x.device)
    left = (n_fft - width) // 2
    window = functional.pad(window, (left, n_fft - width - left))
    norm, frames = "ortho" if normalized else "backward", x.mT
    half = onesided if onesided is not None else x.shape[-2] != n_fft
    signal = torch.fft.irfft(frames, n_fft, norm=norm) if half else torch.fft.ifft(frames, norm=norm).real  # fmt: skip
    parts = [_overlapped(y, hop) for y in (signal * window, (window**2).expand_as(signal))]
    whole, envelope = (y[..., n_fft // 2 if center else 0 :] for y in parts)
    whole = whole / envelope
    return functional.pad(whole, (0, length - whole.shape[-1]))


def _overlapped(windows: torch.Tensor, hop: int) -> torch.Tensor:
    """The sum of [..., number, size] windows, number k from k * hop on."""
    *lead, count, size = windows.shape
    shape = [*lead, size + hop * (count - 1)]
    return torch.ops.aten.unfold_backward(windows, shape, len(lead), size, hop)


SIGNALS: Mapping[str, Callable[..., Any]] = {
    "fft_fftfreq": _frequencies(half=False),
    "fft_rfftfreq": _frequencies(half=True),
    "hann_window": _window(0.5, 0.5),
    "hamming_window": _window(0.54, 0.46),
    "blackman_window": _window(0.42, 0.5, 0.08),
    "bartlett_window": _bartlett,
    "istft": _istft,
}
