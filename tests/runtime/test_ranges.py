"""Ranges of sizes of which a model does not take quite all, or PyTorch cannot prove that it does."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import monotile
from monotile.frontends.torch.sizes.ranges import Ranges

ROWS = Dim("rows", max=12)
DIM = 4


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def by_remainder(x: torch.Tensor) -> torch.Tensor:
    return x * 3 if x.shape[0] % 5 == 3 else x + 1


def always(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return x * 3 if torch.sym_min(2 * n, 3 * n) == 2 * n else x + 1


def of_many(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(0) if x.shape[0] > 2 else x


def even(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.shape[0] % 2 == 0)
    return x.relu()


def to_blocks(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return F.pad(x, (0, 0, 0, (16 - n % 16) % 16)).sum(1)


def to_eights(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return F.pad(x, (0, 0, 0, (8 - n % 8) % 8), value=2.0).exp()


def descending(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return x * torch.arange(n, 0, -1.0)[:, None] + torch.arange(n, 2 * n)[:, None]


def summed(x: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ni,mi->nm", x, x[:1]) + torch.einsum("ni,nj->n", x, x)[:, None]


def by_halves(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return x.reshape(n * n // n, 2, 2).softmax(-1)


def first_of_three(x: torch.Tensor) -> torch.Tensor:
    """A part whose end is compared with three times as much."""
    n = x.shape[0]
    three = x.repeat(3, 1).cumsum(0)
    return three[:n] + three[n:][n:]


def filled_up(x: torch.Tensor) -> torch.Tensor:
    """To twelve rows, of which none may be left."""
    return torch.cat([x, x.new_zeros(12 - x.shape[0], DIM)])


def in_unequal_parts(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([t.sum(0) for t in torch.tensor_split(x, 3)])


def compiled(f: Callable[..., Any], example: int, rows: Any = ROWS) -> Any:
    x = torch.randn(example, DIM)
    return monotile.compile(Of(f), (x,), target="cpu", dynamic_shapes=({0: rows},))


def check(fast: Any, f: Callable[..., Any], sizes: Sequence[int]) -> None:
    for n in sizes:
        x = torch.randn(n, DIM)
        torch.testing.assert_close(fast(x), f(x))


@pytest.mark.parametrize(
    "f", [always, to_blocks, to_eights, descending, summed, by_halves, first_of_three]
)
def test_all_sizes(f: Callable[..., Any]) -> None:
    fast = compiled(f, 6)
    assert not fast.artifact.signature.sizes.conditions
    check(fast, f, (1, 2, 6, 8, 12))


@pytest.mark.parametrize("f", [filled_up, in_unequal_parts])
def test_paths_that_end_at_fractions_of_sizes(f: Callable[..., Any]) -> None:
    """Of which PyTorch's own message is an AssertionError."""
    check(compiled(f, 6), f, (1, 2, 3, 6, 11, 12))


def test_a_path_that_some_sizes_take() -> None:
    fast = compiled(by_remainder, 8)
    check(fast, by_remainder, (3, 8, 9, 12))


def test_a_path_that_others_do_not_take() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] % 5 != 3:
            raise ValueError("another remainder")
        return x * 3

    fast = compiled(f, 8)
    check(fast, f, (3, 8))
    with pytest.raises(
        monotile.InputError, match=r"% 5\)? == 3.* = 9 \(dimension 0 of args\[0\]\)"
    ):
        fast(torch.randn(9, DIM))


def test_padded_only_where_it_is_needed() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if more := -x.shape[0] % 4:
            x = F.pad(x, (0, 0, 0, more))
        return x.view(-1, 4, DIM).sum(0)

    check(compiled(f, 6), f, range(1, 13))


def test_windows_of_two_sizes() -> None:
    """Padded to multiples of three both ways: where columns are, rows may be or not."""

    def f(x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        right, below = -columns % 3, -rows % 3
        whole = F.pad(x, (0, right, 0, below)) if right > 0 or below > 0 else x * 1
        found = whole.view(whole.shape[0] // 3, 3, -1, 3).softmax(1).flatten(2).flatten(0, 1)
        return found[:rows, :columns]

    x = torch.randn(7, 8)
    fast = monotile.compile(Of(f), (x,), target="cpu", dynamic_shapes=({0: ROWS, 1: Dim("columns", max=13)},))  # fmt: skip
    for n, m in ((1, 2), (7, 7), (7, 12), (12, 9), (11, 3), (12, 6), (3, 13)):
        x = torch.randn(n, m)
        torch.testing.assert_close(fast(x), f(x))


def test_bags() -> None:
    table = torch.randn(9, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return F.embedding_bag(torch.arange(n) % 9, table, torch.arange(n) // 2 * 2, mode="sum")

    check(compiled(f, 6), f, (1, 2, 5, 12))


def test_a_check_of_the_model() -> None:
    fast = compiled(even, 6)
    check(fast, even, (2, 12))
    with pytest.raises(monotile.InputError, match="dimension 0 of args"):
        fast(torch.randn(7, DIM))


def test_a_shorter_range() -> None:
    fast = compiled(of_many, 6)
    check(fast, of_many, (1, 2, 3, 12))


def test_one_size_only() -> None:
    with pytest.raises(monotile.CaptureError, match="does not take all sizes"):
        compiled(lambda x: x + torch.ones(6, DIM), 6)


def test_no_rows() -> None:
    """PyTorch traces a model as if there were some."""
    fast = compiled(lambda x: F.max_pool1d(x[:, None], 2), 6)
    with pytest.raises(monotile.InputError, match=r"is 0.*compiled for 1 to 12"):
        fast(torch.randn(0, DIM))


class Counted:
    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.count, self.name = x, x.shape[0], "counted"


def test_a_number_in_a_result() -> None:
    fast = compiled(lambda x: Counted(x * 2), 6)
    for n in (1, 5):
        found = fast(torch.ones(n, DIM))
        assert (type(found), found.count, found.name) == (Counted, n, "counted")
        assert found.x.shape == (n, DIM)


def test_products_within_chunks_that_end_beyond_the_largest_size() -> None:
    """What keeps their reads in range stays, though elements beyond the size are not computed."""
    linear = nn.Linear(16, 16)

    def f(x: torch.Tensor) -> torch.Tensor:
        c = F.pad(linear(x), (0, 0, 0, 0, 0, -x.shape[0] % 16)).reshape(1, -1, 16, 4, 16)
        scores = torch.einsum("bclhn,bcshn->bclsh", c, c)
        return torch.einsum("bclsh,bcshp->bclhp", scores, c)

    shapes = ({0: Dim("rows", max=100)},)
    with torch.no_grad():
        fast = monotile.compile(
            Of(f), (torch.randn(40, 4, 16),), target="cpu", dynamic_shapes=shapes
        )
        for n in (1, 15, 16, 17, 100):
            x = torch.randn(n, 4, 16)
            torch.testing.assert_close(fast(x), f(x), rtol=1e-4, atol=1e-4)


def test_bounds_are_of_the_sizes_that_conditions_leave() -> None:
    whole = Ranges((("n", 1, 24),), ("min(8, n) > 1", "min(8, n) == n"))
    assert whole.allowed().of == (("n", 2, 8),)


def test_symbols_that_conditions_make_equal() -> None:
    whole = Ranges((("a", 1, 9), ("b", 1, 9), ("c", 1, 9)), ("a == b", "c > 1", "a % 2 == 0"))
    assert whole.equal_to("b") == {"a", "b"}
    assert whole.equal_to("c") == {"c"}


class Chunks(nn.Module):
    """Two arguments of one size, which PyTorch gives two symbols. rule: transformers' gated delta rule."""

    def __init__(self, rule: Callable[..., Any]) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, g = x.view(1, -1, 2, DIM), y.view(1, -1, 2, DIM).sum(-1)
        out, _ = self.rule(x, x * 0.5, x, -g.abs(), g.sigmoid(), 4)
        return (out.reshape(-1, DIM) * x.reshape(-1, DIM)).reshape(x.shape[1], 2 * DIM)


@pytest.mark.wide
def test_chunks_of_which_the_example_has_one() -> None:
    """PyTorch takes the number of chunks for 1 then, and other numbers are another path."""
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")

    def call(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(n, 2 * DIM), torch.randn(n, 2 * DIM)

    model, rows = Chunks(qwen.torch_chunk_gated_delta_rule), {0: Dim("rows", max=12)}
    with torch.no_grad():
        fast = monotile.compile(model, call(3), target="cpu", dynamic_shapes=(rows, rows))
        for n in (1, 2, 3, 4, 5, 9, 12):
            given = call(n)
            torch.testing.assert_close(fast(*given), model(*given), rtol=1e-4, atol=1e-5)


def test_one_within_the_sizes_of_another_path() -> None:
    """The example is of neither path."""

    def f(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        if n == 1:
            return x * 2
        return x[: n - 1] if n < 4 else x[1:]

    check(compiled(f, 6), f, (1, 2, 3, 4, 12))
