"""Packed sequences: a kernel of a model beside eager PyTorch, with several lengths for each kernel."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

import monotile
from monotile.errors import CaptureError, IndexOutOfRangeError
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.ir.program import Compute, Loop
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated

Args = tuple[Any, ...]
LENGTHS = ((7, 5, 2), (3, 1, 6), (1, 1, 1), (4, 4, 4))
DESCENDING = ((7, 5, 2), (6, 6, 1), (4, 4, 4), (1, 1, 1))

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")


def padded(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def same(found: Any, wanted: Any, tolerance: float = 1e-9) -> None:
    """Of the same structure, shapes, types and values."""
    (xs, found_tree), (ys, wanted_tree) = map(pytree.tree_flatten, (found, wanted))
    assert found_tree == wanted_tree
    for x, y in zip(xs, ys, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def check(model: nn.Module, calls: Sequence[Args], dynamic_shapes: Any = None) -> None:
    """One kernel for all `calls`."""
    model.double().eval()
    with torch.no_grad():
        fast = monotile.compile(model, calls[0], target="cpu", dynamic_shapes=dynamic_shapes)
        for args in calls:
            same(fast(*args), model(*args))


class Layer(nn.Module):
    """Packs, runs `layer` and pads. options: of `pad_packed_sequence`."""

    def __init__(self, layer: nn.RNNBase, enforce_sorted: bool = False, **options: Any) -> None:
        super().__init__()
        self.layer, self.enforce_sorted, self.options = layer, enforce_sorted, options

    def forward(self, x: torch.Tensor, lengths: Any, hx: Any = None) -> Any:
        first = self.layer.batch_first
        packed = pack_padded_sequence(x, lengths, first, self.enforce_sorted)
        out, states = self.layer(packed, hx)
        return *pad_packed_sequence(out, first, **self.options), states


@pytest.mark.parametrize("enforce_sorted", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(4, 6, 2, bidirectional=True, proj_size=3),
        lambda: nn.LSTM(4, 6, bias=False),
        lambda: nn.GRU(4, 6, 2, bidirectional=True),
        lambda: nn.RNN(4, 6, 2),
        lambda: nn.RNN(4, 6, nonlinearity="relu", bidirectional=True),
    ],
)
def test_layers(make: Callable[[], nn.RNNBase], enforce_sorted: bool) -> None:
    lengths = DESCENDING if enforce_sorted else LENGTHS
    calls = [(padded(7, 3, 4), torch.tensor(n)) for n in lengths]
    check(Layer(make(), enforce_sorted), calls)


@pytest.mark.parametrize("total", [7, 9])
def test_padding_to_a_total_length(total: int) -> None:
    layer = Layer(nn.GRU(4, 6, batch_first=True), total_length=total, padding_value=-2.5)
    check(layer, [(padded(3, 7, 4), torch.tensor(n)) for n in LENGTHS])


def test_initial_states() -> None:
    calls = [
        (padded(3, 7, 4), torch.tensor(n), (padded(4, 3, 6), padded(4, 3, 6))) for n in LENGTHS
    ]
    check(Layer(nn.LSTM(4, 6, 2, bidirectional=True, batch_first=True)), calls)


def test_float32_and_int32_lengths() -> None:
    model, x = Layer(nn.LSTM(4, 6, bidirectional=True)), torch.randn(7, 3, 4)
    fast = monotile.compile(model, (x, torch.tensor((1, 7, 2)).int()), target="cpu")
    lengths = torch.tensor((4, 2, 6)).int()
    with torch.no_grad():
        same(fast(x, lengths), model(x, lengths), 2e-5)


@pytest.mark.parametrize("lengths", [[5, 4, 4], [7, 2, 1]])
def test_lengths_as_a_list(lengths: list[int]) -> None:
    check(Layer(nn.LSTM(4, 6), enforce_sorted=True), [(padded(7, 3, 4), lengths)])


class Held(nn.Module):
    """The lengths are a tensor of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.lengths = Layer(nn.GRU(4, 6)), torch.tensor([2, 5, 4])

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x, self.lengths)


def test_lengths_of_the_model() -> None:
    check(Held(), [(padded(7, 3, 4),), (padded(7, 3, 4),)])


class Rows(nn.Module):
    """Works on the rows that there are, and packs them anew."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTM(4, 6, bidirectional=True), nn.GRU(5, 3)
        self.linear = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        out, _ = self.first(pack_padded_sequence(x, lengths, enforce_sorted=False))
        rows = torch.relu(self.linear(out.data))
        packed = PackedSequence(rows, out.batch_sizes, out.sorted_indices, out.unsorted_indices)
        again, h = self.second(packed)
        return pad_packed_sequence(again, True)[0], h, out.data.mean(), rows.amax(0)


@pytest.mark.wide
def test_rows() -> None:
    check(Rows(), [(padded(7, 3, 4), torch.tensor(n)) for n in LENGTHS])


@pytest.mark.wide
def test_sizes_of_the_call() -> None:
    t, b = Dim("t", max=12), Dim("b", max=6)
    lengths = ((7, 5, 2), (3, 5), (3, 9, 8, 1, 1))
    calls = [
        (padded(n, len(x), 4), torch.tensor(x)) for n, x in zip((7, 9, 9), lengths, strict=True)
    ]
    check(Rows(), calls, {"x": {0: t, 1: b}, "lengths": {0: b}})


class Packed(nn.Module):
    """Gives packed sequences: a row for each step of each sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 6)

    def forward(self, x: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = pack_padded_sequence(tokens, lengths, enforce_sorted=False)
        out = self.layer(pack_padded_sequence(x, lengths, enforce_sorted=False))
        return out, packed, pad_packed_sequence(packed)


@pytest.mark.wide
def test_results_are_packed() -> None:
    tokens = torch.randint(0, 9, (7, 3))
    check(Packed(), [(padded(7, 3, 4), tokens, torch.tensor(n)) for n in LENGTHS])


class InPlace(nn.Module):
    """Changes what has been packed, and the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 6)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        x = x * 2
        one = pack_padded_sequence(x, lengths, enforce_sorted=False)
        other = pack_padded_sequence(x, lengths.sort(descending=True)[0])
        one.data.mul_(2)
        x.zero_()
        return self.layer(one)[1], pad_packed_sequence(self.layer(other)[0])[0]


@pytest.mark.wide
def test_changes_in_place() -> None:
    check(InPlace(), [(padded(7, 3, 4), torch.tensor(n)) for n in LENGTHS])


class Encoder(nn.Module):
    """As Tacotron 2 has it: convolutions, a packed LSTM; then a mean over the steps that there are, and a classifier of the final state."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.lstm = nn.LSTM(8, 5, batch_first=True, bidirectional=True)
        self.classes = nn.Linear(10, 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = torch.relu(self.norm(self.conv(x.transpose(1, 2)))).transpose(1, 2)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True)
        out, (h, _) = self.lstm(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        mask = torch.arange(out.shape[1]) < lengths[:, None]
        mean = (out * mask[..., None]).sum(1) / lengths[:, None]
        return out, mean, self.classes(torch.cat([h[-2], h[-1]], 1))


def test_an_encoder() -> None:
    check(Encoder(), [(padded(3, 7, 4), torch.tensor(n)) for n in DESCENDING])


class Residual(nn.Module):
    """Takes the longest sequence to fill the padded tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(4, 4)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        out, _ = self.layer(pack_padded_sequence(x, lengths, enforce_sorted=False))
        return x + pad_packed_sequence(out)[0]


def test_a_residual() -> None:
    check(Residual(), [(padded(7, 3, 4), torch.tensor(n)) for n in ((7, 5, 2), (1, 1, 7))])


def test_lengths_are_checked() -> None:
    model, x = Layer(nn.LSTM(4, 6), enforce_sorted=True), torch.randn(7, 3, 4)
    fast = monotile.compile(model, (x, torch.tensor((7, 5, 2))), target="cpu")
    for lengths in ((2, 5, 7), (8, 5, 2), (7, 5, 0), (7, 5, -1)):
        with pytest.raises(IndexOutOfRangeError, match=r"lengths_descending_up_to_7.*pack_padded"):
            fast(x, torch.tensor(lengths))


class Given(nn.Module):
    """A packed sequence from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 6)

    def forward(self, rows: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        return self.layer(PackedSequence(rows, sizes))[1][0]


def test_what_is_refused() -> None:
    x, lengths = torch.randn(7, 3, 4), torch.tensor((7, 5, 2))
    packed = pack_padded_sequence(x, lengths)
    with pytest.raises(CaptureError, match=r"self\.layer\(Packed.*pack them in the model"):
        capture(Given(), (packed.data, packed.batch_sizes))
    with pytest.raises(CaptureError, match="Expected hidden size"):
        capture(Layer(nn.GRU(4, 6)), (x, lengths, torch.zeros(1, 2, 6)))
    with pytest.raises(CaptureError, match=r"input_size\. Expected 5, got 4"):
        capture(Layer(nn.GRU(5, 6)), (x, lengths))
    with pytest.raises(CaptureError, match="equal to batch_size"):
        capture(Layer(nn.GRU(4, 6), enforce_sorted=True), (x, lengths[:2]))
    with pytest.raises(CaptureError, match="training mode"):
        capture(Layer(nn.LSTM(4, 6, 2, dropout=0.5)), (x, lengths))


def test_fewer_steps_than_the_padded_ones() -> None:
    """That no sequence is longer, each call checks."""
    model, x = Layer(nn.LSTM(4, 6), total_length=5).eval(), torch.randn(7, 3, 4)
    compiled = monotile.compile(model, (x, torch.tensor((5, 5, 2))))
    lengths = torch.tensor((4, 3, 1))
    torch.testing.assert_close(compiled(x, lengths), model(x, lengths))
    with pytest.raises(IndexOutOfRangeError, match="a_check_of_the_model"):
        compiled(x, torch.tensor((7, 5, 2)))


def test_nothing_is_packed_of_which_nobody_reads_the_rows() -> None:
    """A layer's loop is that of padded sequences, with a Compute for each state that says which sequences go on."""
    model = Layer(nn.LSTM(6, 6), total_length=7)
    program = capture(model.eval(), (torch.randn(7, 3, 6), torch.tensor((7, 5, 2)))).program
    (loop,) = (s for s in program.body if isinstance(s, Loop))
    kinds = [s.combiner for s in loop.body if isinstance(s, Compute)]
    assert kinds == ["sum", "sum", None, None, None, None]
    assert not any("size" in s.out.name for s in program.body if isinstance(s, Compute))


def test_operators_run_in_pytorch() -> None:
    """As where a part of a model is left to it."""
    model, x, lengths = (
        Layer(nn.GRU(4, 6), total_length=7),
        padded(7, 3, 4),
        torch.tensor([2, 5, 4]),
    )
    exported = export(model.double().eval(), (x, lengths))
    same(exported.module()(x, lengths), model(x, lengths))


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_on_the_emulator() -> None:
    model = Layer(nn.LSTM(16, 16, 2, bidirectional=True), total_length=7).eval()
    args = torch.randn(7, 3, 16), torch.tensor((3, 7, 1))
    fast = Emulated(model, args)
    with torch.no_grad():
        for n in LENGTHS:
            lengths = torch.tensor(n)
            wanted = pytree.tree_leaves(model(args[0], lengths))
            same(list(fast(args[0], lengths)), wanted, 2e-5)
