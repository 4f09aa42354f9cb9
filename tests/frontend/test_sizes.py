"""Operators over a dimension whose size the call decides, at every size of a range."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from monotile.errors import UnsupportedOperatorError
from monotile.frontends.torch.capture import capture
from monotile.ir.expr import Select, loads, walk
from monotile.ir.program import Compute
from tests.frontend.sized import Over, check

LENGTH = Dim("length", min=4, max=9)
BATCH = Dim("batch", min=2, max=4)


# Of x: [2, length, 6].
ALONG: dict[str, Callable[[torch.Tensor], object]] = {
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "sum": lambda x: (x.sum(1), x.sum(), x.sum((0, 1))),
    "mean": lambda x: (x.mean(1), x.mean(), x.mean((0, 1), keepdim=True)),
    "prod": lambda x: x.prod(1),
    "extremes": lambda x: (x.amax(1), x.amin(1), x.max(), x.max(1).values, x.max(1).indices),
    "positions": lambda x: (x.argmax(1), x.argmin(1)),
    "logic": lambda x: ((x > 0).any(1), (x > -9).all(1)),
    "variance": lambda x: (x.var(1), x.std(1, correction=0), torch.var_mean(x, 1)[1]),
    "norm": lambda x: (x.norm(dim=1), F.normalize(x, dim=1)),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "instance_norm": lambda x: F.instance_norm(x.transpose(1, 2)),
    "group_norm": lambda x: F.group_norm(x.transpose(1, 2), 3),
    "scan": lambda x: (x.cumsum(1), x.cumprod(1), x.cummax(1).values, x.flip(1).cumsum(1)),
    "sorted": lambda x: (x.sort(1).values, x.argsort(1), x.topk(2, 1).values),
    "concatenated": lambda x: (torch.cat([x, x[:, :1]], 1), torch.cat([x, 2 * x], 1), torch.stack([x, -x], 1)),
    "sliced": lambda x: (x[:, 1:], x[:, :-1], x[:, -1], x[:, 0], x[:, -2:], x[:, ::2]),
    "shifted": lambda x: x[:, 1:] - x[:, :-1],
    "shifted_by_sizes": lambda x: (x.roll(-(x.shape[1] // 2), 1), x.roll(x.shape[1] - 20, 1), x[:, (3 - x.shape[1]) % x.shape[1]]),
    "flipped": lambda x: (x.flip(1), x.flip(0, 1), x.roll(1, 1), x.roll((1, 1), (0, 1))),
    "padded": lambda x: (F.pad(x, (0, 0, 1, 2)), F.pad(x.transpose(1, 2), (1, 1), mode="reflect"), F.pad(x.transpose(1, 2), (1, 1), mode="replicate")),
    "positions_added": lambda x: x + torch.arange(x.shape[1])[:, None],
    "counted": lambda x: (x.sum(1) / x.shape[1], x * x.shape[1], x.shape[1], x.new_zeros(x.shape[1]), torch.full((x.shape[1],), 2.0)),
    "triangles": lambda x: (x @ x.transpose(1, 2)).tril(),
    "products": lambda x: (x @ x.transpose(1, 2), x.transpose(1, 2) @ x, torch.einsum("bld,bmd->blm", x, x), torch.einsum("bld,ble->bde", x, x)),
    "attention": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
    "causal": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True),
    "masked": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()),
    "by_hand": lambda x: ((x @ x.transpose(1, 2)) / 2).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf).softmax(-1) @ x,
    "flattened": lambda x: (x.flatten(1), x.flatten(), x.reshape(-1, 6), x.reshape(-1, 3), x.reshape(2, -1, 3)),
    "split": lambda x: (*x.split(2, -1), *x.chunk(2, -1), *x.unbind(0)),
    "transposed": lambda x: (x.transpose(0, 1), x.permute(2, 1, 0).contiguous()),
    "views": lambda x: x.view(2, x.shape[1], 2, 3).transpose(1, 2).reshape(4, x.shape[1], 3),
    "expanded": lambda x: (x.mean(1, keepdim=True).expand_as(x), x[:, None].expand(-1, 3, -1, -1), x.repeat(1, 2, 1), x.repeat_interleave(2, 1)),
    "gathered": lambda x: (x.gather(1, (x * 0).long()), x[:, (x[0, :, 0] * 0).long()], F.embedding((x > 0).long()[..., 0], torch.eye(4))),
    "listed": lambda x: (torch.nonzero_static(x[0, :, 0] > 0, size=x.shape[1]), x + 1),
    "written": lambda x: (x.index_add(1, torch.arange(x.shape[1]), x), x.scatter_add(1, (x * 0).long(), x), torch.zeros(2, 12, 6).index_add(1, torch.arange(x.shape[1]), x)),
    "one_hot": lambda x: F.one_hot((x[..., 0] > 0).long(), 2),
    "chosen": lambda x: torch.where(x > 0, x, x.mean(1, keepdim=True)),
    "convolved": lambda x: (F.conv1d(x.transpose(1, 2), torch.ones(4, 6, 3), padding=1), F.conv1d(x.transpose(1, 2), torch.ones(4, 6, 2), stride=2, padding=1), F.conv1d(x.transpose(1, 2), torch.ones(6, 1, 3), padding=2, dilation=2, groups=6)),
    "pooled": lambda x: (F.max_pool2d(x[:, None], (2, 1)), F.avg_pool1d(x.transpose(1, 2), 3, 1, 1), F.adaptive_avg_pool1d(x.transpose(1, 2), 1)),
    "pooled_to": lambda x: (F.adaptive_avg_pool1d(x.transpose(1, 2), 3), F.adaptive_max_pool1d(x.transpose(1, 2), 2), F.adaptive_avg_pool2d(x[:, None], (3, 4))),
    "pooled_from": lambda x: F.adaptive_max_pool1d(x.transpose(1, 2), 3, return_indices=True),
    "pooled_over": lambda x: (F.avg_pool2d(x[:, None], (x.shape[1], 2)), F.max_pool2d(x[:, None], (x.shape[1], 3), 2, (0, 1)), F.max_pool1d(x.transpose(1, 2), x.shape[1])),
    "pooled_to_sizes": lambda x: (F.adaptive_avg_pool1d(x.transpose(1, 2), x.shape[1] // 2 + 1), F.adaptive_max_pool1d(x.transpose(1, 2), x.shape[1] - 3), F.adaptive_max_pool2d(x[:, None], (x.shape[1] // 2, 4))),
    "enlarged": lambda x: F.interpolate(x.transpose(1, 2), scale_factor=2, mode="nearest"),
    "unfolded": lambda x: x.unfold(1, 2, 1),
    "nothing": lambda x: x.clone(),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONG)
def test_along_a_size(name: str) -> None:
    def make(n: int) -> tuple[torch.Tensor, ...]:
        return (torch.randn(2, n, 6, generator=torch.Generator().manual_seed(n)),)

    check(Over(ALONG[name]), make, ({1: LENGTH},), [(n,) for n in range(4, 10)])


class CountedOn(nn.Module):
    """Rows of a table by their positions, taken by an index, as masks of transformers are."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        at = torch.arange(n) + 0
        known = at[None][torch.zeros(1, 1, dtype=torch.long), torch.arange(n)[None]]
        return x + self.table(known[0] + 3)


def test_positions_are_no_data() -> None:
    sized = check(CountedOn(), lambda n: (torch.randn(n, 3),), ({0: LENGTH},), [(4,), (5,), (9,)])
    program = sized.captured.program
    reads = [s for s in program.body if isinstance(s, Compute) and any(x.tensor.shape == (12, 3) for x in loads(s.body))]  # fmt: skip
    assert reads
    assert not any(isinstance(x, Select) for s in reads for x in walk(s.body))


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
def test_resized_to_a_size(mode: str, corners: bool) -> None:
    """To more elements than there are, fewer, or one."""
    table = torch.randn(1, 3, 5, 5)
    resized = Over(
        lambda x: F.interpolate(table, (x.shape[0], 4), mode=mode, align_corners=corners)
    )
    length = Dim("length", min=1, max=9)
    check(resized, lambda n: (torch.zeros(n),), ({0: length},), [(1,), (3,), (5,), (9,)])


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
def test_resized_with_antialiasing(mode: str, corners: bool) -> None:
    """From a size to another, and by a factor."""

    class Resized(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            ways = {"mode": mode, "align_corners": corners, "antialias": True}
            return F.interpolate(x, (y.shape[0], 4), **ways), F.interpolate(x, scale_factor=0.7, **ways)  # fmt: skip

    def make(n: int, m: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(1, 2, n, 5), torch.randn(m)

    dims = ({2: Dim("n", min=2, max=9)}, {0: Dim("m", min=1, max=9)})
    check(Resized(), make, dims, [(2, 1), (9, 4), (5, 3), (3, 9), (9, 9)])


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_the_spread_of_one_row_or_none() -> None:
    """NaN, as in PyTorch, of rows of the call and of those that a mask selects."""

    class Spread(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            some = x[x > 1000]
            return x.var(0), x.std(), some.std(), some.var(correction=0), x[x > 0].std()

    rows = Dim("rows", min=1, max=5)
    check(Spread(), lambda n: (torch.randn(n, 3),), ({0: rows},), [(1,), (2,), (5,)])


def test_a_lowering_that_takes_no_sizes() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"pdist.*a size that a call decides.*at "):
        capture(Over(F.pdist), (torch.randn(5, 3),), dynamic_shapes=({0: LENGTH},))
