"""Examples with one row of a dynamic size: what PyTorch decomposes stays dynamic."""

import torch
from torch import nn
from torch.export import Dim

import monotile
from monotile.frontends.torch.capture import capture
from monotile.ir.signature import OutputLeaf

T = torch.Tensor


class Scaled(nn.Module):
    """A spectrum times a number, and the signal again: PyTorch broadcasts the row, where it decomposes both."""

    def forward(self, x: T) -> T:
        window = torch.hann_window(16)
        spectrum = torch.stft(x, 16, 8, window=window, return_complex=True)
        return torch.istft(spectrum * torch.tensor(0.2), 16, 8, window=window)


class Guided(nn.Module):
    """Classifier-free guidance: both halves of one batch."""

    def forward(self, x: T) -> T:
        given, free = torch.cat([x, x * 2]).chunk(2)
        return free + 7.5 * (given - free)


def test_decompositions_keep_a_size() -> None:
    """PyTorch remembers the shapes of earlier traces: the second one broadcast the row."""
    for most in (3, 4, 5):
        sizes = ({0: Dim("b", min=1, max=most)},)
        for kind in (Scaled, Guided):
            (result,) = capture(kind().eval(), (torch.randn(1, 64),), None, sizes).signature.outputs
            assert isinstance(result, OutputLeaf)
            assert result.shape[:1] not in ((), ("1",)), (kind, most)


def test_calls_with_more_rows() -> None:
    sizes = ({0: Dim("b", min=1, max=3)},)
    for kind in (Scaled, Guided):
        model = kind().eval()
        compiled = monotile.compile(model, (torch.randn(1, 64),), dynamic_shapes=sizes, target="cpu")  # fmt: skip
        for rows in (1, 2, 3):
            x = torch.randn(rows, 64)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
