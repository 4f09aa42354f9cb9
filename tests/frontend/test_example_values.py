"""Numbers and assertions that Python reads from tensors: fixed to the values of the example arguments, and checked in every call."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import monotile
from monotile.errors import CaptureError, IndexOutOfRangeError
from monotile.frontends.torch.capture import capture
from tests.frontend.asserting import Asserts

T = torch.Tensor


class Padded(nn.Module):
    """A mask of as many steps as the longest sequence has."""

    def forward(self, x: T, lengths: T) -> T:
        steps = int(lengths.max())
        mask = torch.arange(steps, device=x.device)[None] < lengths[:, None]
        return x[:, :steps] * mask[..., None]


class Listed(nn.Module):
    """Parts whose lengths are a list."""

    def forward(self, x: T, lengths: T) -> T:
        parts = x.split(lengths.tolist())
        return torch.stack([p.sum(0) / max(len(p), 1) for p in parts])


class InNumpy(nn.Module):
    """Rows by experts, as HiDream has them: ends of stretches that NumPy sums up."""

    def forward(self, x: T, lengths: T) -> T:
        ends = lengths.cpu().numpy().cumsum(0)
        return torch.stack([x[:end].sum(0) for end in ends])


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: T) -> T:
        return x.expand(int(self.scale), -1) * self.scale.item()


class Graphs(nn.Module):
    """Sums of as many rows as an index says, as graph libraries write it."""

    def forward(self, x: T, index: T) -> T:
        made = x.new_zeros(int(index.max()) + 1, x.shape[1])
        return made.index_add(0, index, x)


def _same(model: nn.Module, *args: T) -> Any:
    compiled = monotile.compile(model.eval(), copy.deepcopy(args))
    exact = copy.deepcopy(model).double()(
        *(a.double() if a.is_floating_point() else a for a in args)
    )
    torch.testing.assert_close(compiled(*args).double(), exact, rtol=1e-5, atol=1e-6)
    return compiled


def test_the_longest_sequence() -> None:
    compiled = _same(Padded(), torch.randn(3, 9, 4), torch.tensor([2, 7, 5]))
    x, lengths = torch.randn(3, 9, 4), torch.tensor([7, 1, 7])  # as long
    assert torch.equal(compiled(x, lengths), Padded()(x, lengths))
    with pytest.raises(IndexOutOfRangeError, match=r"was_7_when_compiled.*int\(lengths.max\(\)\)"):
        compiled(x, torch.tensor([7, 1, 8]))


class Sized(nn.Module):
    """Sizes that are tensors, which PyTorch's operators read themselves."""

    def forward(self, x: T, n: T) -> list[T]:
        height, width = n
        found = [F.interpolate(x[None], size=(a, 4)) for a in n]
        found += [x.view(height, -1), x[0, 0, 0].expand(height, 2), x.repeat(1, 1, width)]
        found += [
            torch.zeros(height, width) + x[0, 0, 0],
            torch.full((width,), 2.0),
            x.tril(height),
        ]
        found += [
            F.pad(x, (height, width)),
            F.adaptive_avg_pool2d(x, tuple(n)),
            *x.split(width, -1),
        ]
        return [
            *found,
            torch.linspace(0, 1, width),
            x.topk(width, -1).values,
            x.new_ones((width, 2)),
        ]


def test_tensors_as_sizes() -> None:
    x, n = torch.randn(3, 4, 6), torch.tensor([2, 3])
    compiled = monotile.compile(Sized().eval(), (x, n))
    torch.testing.assert_close(compiled(x, n), Sized()(x, n))
    with pytest.raises(IndexOutOfRangeError, match="was_2_when_compiled"):
        compiled(torch.randn(3, 4, 6), torch.tensor([3, 3]))


def test_a_list_of_lengths() -> None:
    compiled = _same(Listed(), torch.randn(9, 4), torch.tensor([2, 4, 3]))
    with pytest.raises(IndexOutOfRangeError, match="was__2__4__3__when_compiled"):
        compiled(torch.randn(9, 4), torch.tensor([2, 3, 4]))


def test_an_array() -> None:
    compiled = _same(InNumpy(), torch.randn(9, 4), torch.tensor([2, 3, 4]))
    with pytest.raises(IndexOutOfRangeError, match="was__2__3__4__when_compiled"):
        compiled(torch.randn(9, 4), torch.tensor([4, 1, 4]))


def test_an_array_of_what_a_network_computes() -> None:
    class Routed(nn.Module):
        def forward(self, x: T) -> T:
            ends = x.argmax(-1).bincount().numpy().cumsum(0)
            return torch.stack([x[:end].sum(0) for end in ends])

    with pytest.raises(
        CaptureError, match=r"test_example_values.*numpy.*depends on a tensor's values"
    ):
        capture(Routed(), (torch.randn(9, 4),))


def test_a_parameter_as_a_number() -> None:
    model = Scaled()
    compiled = _same(model, torch.randn(5))
    with torch.no_grad():
        model.scale.fill_(2.0)
    with pytest.raises(IndexOutOfRangeError, match=r"was_3_when_compiled.*self\.scale"):
        compiled(torch.randn(5))


def test_rows_by_an_index() -> None:
    _same(Graphs(), torch.randn(12, 3), torch.tensor([0, 0, 1, 1, 2, 3, 3, 3, 1, 0, 2, 2]))


def test_assertions() -> None:
    compiled = _same(Asserts(), torch.randn(6, 7))
    with pytest.raises(IndexOutOfRangeError, match="assert bool"):
        compiled(torch.full((6, 7), 200.0))


class Chosen(nn.Module):
    """As many rows as the network itself says."""

    def forward(self, x: T) -> T:
        return torch.stack([x.sum(0)] * int(x.sigmoid().sum()))


def test_what_a_network_computes_is_not_fixed() -> None:
    with pytest.raises(CaptureError, match="depends on"):
        monotile.compile(Chosen().eval(), (torch.randn(8, 3),))


def test_nothing_stays_changed() -> None:
    class Counts(Padded):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: T, lengths: T) -> T:
            self.calls.add_(1)
            return super().forward(x, lengths) * self.calls

    model, x = Counts(), torch.randn(2, 5, 3)
    compiled = monotile.compile(model.eval(), (x, torch.tensor([5, 2])))
    assert model.calls.item() == 0
    torch.testing.assert_close(compiled(x, torch.tensor([1, 5])), Padded()(x, torch.tensor([1, 5])))


def test_what_a_model_remembers_of_a_call_is_not_of_the_trace() -> None:
    class Grid(nn.Module):
        """Keeps a grid for the size that it has met last, as detectors do."""

        shape = None
        places = torch.empty(0)

        def forward(self, x: T) -> T:
            if self.shape != x.shape:
                self.shape, self.places = x.shape, torch.arange(float(x.shape[-1]))
            return x + self.places

    model, x = Grid().eval(), torch.randn(2, 5)
    compiled = monotile.compile(model, (x,))
    assert model.shape is None
    torch.testing.assert_close(compiled(x), model(x))


class Remembering(nn.Module):
    """Keeps what it made for a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.shape: Any = None

    def forward(self, x: T, lengths: T) -> T:
        if self.shape != x.shape:
            self.shape, self.steps = x.shape, torch.arange(int(lengths.max()))
        return x[:, : len(self.steps)] * self.steps[None, :, None]


def test_a_model_stays_as_it_was() -> None:
    model = Remembering()
    monotile.compile(model.eval(), (torch.randn(2, 5, 3), torch.tensor([4, 2])))
    assert model.shape is None
    assert not hasattr(model, "steps")


class Windowed(nn.Module):
    """Asks for two numbers on a line."""

    def forward(self, x: T, ends: T) -> T:
        first, last = int(ends[0]), int(ends[1])
        return x[:, first:last].sum(1)


def test_two_numbers_on_a_line() -> None:
    compiled = _same(Windowed(), torch.randn(3, 9), torch.tensor([2, 7]))
    with pytest.raises(IndexOutOfRangeError):
        compiled(torch.randn(3, 9), torch.tensor([2, 6]))


class Ranging(nn.Module):
    """Steps up to the longest sequence, without a number of Python's."""

    def forward(self, x: T, lengths: T) -> T:
        steps = torch.arange(lengths.max(), device=x.device)
        return x[:, : len(steps)] * steps[None, :, None]


class Pooled(nn.Module):
    """Distances of places that are floats, as Funnel has them: nothing in a call can change them."""

    def forward(self, x: T) -> T:
        places = torch.arange(0, x.shape[1]).float()
        ends = torch.cat([places.new_tensor([-3.0]), places[1::2]])
        steps = torch.arange(ends[0] - places[0] + 8, ends[-1] - places[-1] - 5, -2)
        return x[:, : len(steps)] * steps


def test_ranges_between_tensors() -> None:
    compiled = _same(Ranging(), torch.randn(2, 5, 3), torch.tensor([4, 2]))
    with pytest.raises(IndexOutOfRangeError):
        compiled(torch.randn(2, 5, 3), torch.tensor([3, 2]))
    _same(Pooled(), torch.randn(2, 16))
    # What floats of the call say.
    with pytest.raises(CaptureError, match=r"data-dependent|depends on a tensor's values"):
        capture(Ranging(), (torch.randn(2, 5, 3), torch.tensor([4.0, 2.0])))


class Counted(nn.Module):
    """least: of `bincount`; 0 for as many counts as there are."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least

    def forward(self, x: T, groups: T) -> T:
        counts = torch.bincount(groups, minlength=self.least)
        sums = x.new_zeros(len(counts), x.shape[1]).index_add(0, groups, x)
        return sums / counts.clamp(min=1)[:, None] + groups.bincount(x[:, 0], self.least)[:, None]


class Neighbours(nn.Module):
    """The nearest of each, as many as the most that one has by a mask, counted in float32 (egnn-pytorch)."""

    def forward(self, x: T, mask: T) -> T:
        near = (mask.float() @ mask.float()) > 0
        most = int(near.float().sum(-1).max().item())
        distances = (x[:, None] - x[None]).square().sum(-1)
        return x[distances.masked_fill_(near, 0.0).topk(most, largest=False).indices].sum(1)


def test_whole_numbers_of_floats() -> None:
    places = torch.arange(9)
    mask = (places[:, None] - places[None]).abs() <= 1
    compiled = _same(Neighbours(), torch.randn(9, 3), mask)
    with pytest.raises(IndexOutOfRangeError, match="was_5_0_when_compiled"):
        compiled(torch.randn(9, 3), mask | (places == 0))


class Shares(nn.Module):
    """As many as tenths and thirds of a mask add up to: numbers that are rounded."""

    def forward(self, x: T, mask: T) -> T:
        return x.unfold(0, int((mask.float() * 0.1 + mask.float() / 3).sum().item()), 1)


def test_no_whole_numbers_of_floats() -> None:
    with pytest.raises(CaptureError):
        capture(Shares(), (torch.randn(9, 3), torch.arange(7) < 5))


@pytest.mark.parametrize("least", [0, 6])
def test_counts(least: int) -> None:
    groups = torch.tensor([0, 0, 1, 2, 2, 2, 4])
    compiled = _same(Counted(least), torch.randn(7, 3), groups)
    if least:
        x = torch.randn(7, 3)
        torch.testing.assert_close(compiled(x, groups + 1), Counted(least)(x, groups + 1))
    with pytest.raises(IndexOutOfRangeError):
        compiled(torch.randn(7, 3), groups + 2)


class PerGraph(nn.Module):
    """Sums of nodes for each graph: the number of graphs is the example's, that of nodes the call's."""

    def forward(self, x: T, graph: T) -> T:
        count = int(graph.max()) + 1
        sums = x.new_zeros(count, x.shape[1]).index_add_(0, graph, x)
        return sums / torch.bincount(graph, minlength=count)[:, None]


def test_with_sizes_of_the_call() -> None:
    nodes = Dim("nodes", min=1, max=9)
    model, args = PerGraph(), (torch.randn(5, 3), torch.tensor([0, 0, 1, 2, 2]))
    fast = monotile.compile(model, args, target="cpu", dynamic_shapes=({0: nodes}, {0: nodes}))
    for graph in ([0, 1, 2], [2, 1, 0, 0, 1, 1, 2, 0, 1]):
        args = torch.randn(len(graph), 3), torch.tensor(graph)
        torch.testing.assert_close(fast(*args), model(*args))
    with pytest.raises(IndexOutOfRangeError, match="read_from_a_tensor_that_was_2"):
        fast(torch.randn(2, 3), torch.tensor([0, 1]))
