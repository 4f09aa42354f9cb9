"""Views, joins and splits."""

import torch

from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.lower.reshape import reshape_index
from monotile.ir.expr import Axis, Binary, Expr, Select, add, children, idx, mul
from monotile.ir.program import Compute
from tests.frontend.against import Operators, check_operators


def test_views() -> None:
    check_operators(
        {
            "reshape_split": lambda x: x.reshape(2, 3, 2, 2, 5),
            "reshape_merge": lambda x: x.reshape(6, 20),
            "reshape_mixed": lambda x: x.reshape(4, 3, 10),
            "reshape_ones": lambda x: x.reshape(1, 2, 1, 3, 20, 1),
            "flatten": lambda x: x.flatten(1),
            "unflatten": lambda x: x.unflatten(2, (2, 2)),
            "transposed_reshape": lambda x: x.transpose(0, 2).reshape(-1),
            "permute": lambda x: x.permute(3, 0, -2, 1),
            "transpose": lambda x: x.transpose(-1, 1),
            "mT": lambda x: x.mT,
            "t": lambda x: x[0, 0].t(),
            "reshape_as": lambda x: x.transpose(0, 1).reshape_as(x.flatten(2)),
            "view_as": lambda x: x.flatten(1).view_as(x),
            "swapaxes": lambda x: x.swapaxes(0, -1).swapdims(1, 2),
            "meshgrid": lambda x: torch.meshgrid(
                x[0, 0, 0], x[0, 0, :, 0], x[0, :, 0, 0], indexing="xy"
            ),
            "meshgrid_ij": lambda x: torch.meshgrid(x[0, 0, 0], x[0, 0, 0, 0], indexing="ij"),
            "movedim": lambda x: x.movedim(0, 2),
            "expand": lambda x: x[:, :1].expand(2, 7, 4, 5),
            "expand_new": lambda x: x[0].expand(3, -1, -1, -1),
            "squeeze": lambda x: (x[:, :1].squeeze(1), x[:1].squeeze()),
            "unsqueeze": lambda x: x.unsqueeze(-1).unsqueeze(0),
            "slice": lambda x: x[:, 1:, 1::2, -3:-1],
            "slice_beyond": lambda x: x[:, 1:100, :, -9:3],
            "select": lambda x: x[1, :, -1],
            "narrow": lambda x: x.narrow(2, 1, 2),
            "split": lambda x: x.split(2, 3),
            "split_sizes": lambda x: x.split([1, 3, 1], -1),
            "chunk": lambda x: x.chunk(3, 2),
            "unbind": lambda x: x.unbind(1),
            "diagonal": lambda x: x.diagonal(1, 2, 3),
            "diagonal_below": lambda x: x.diagonal(-1, 1, 3),
            "unfold": lambda x: x.unfold(3, 2, 2),
            "flip": lambda x: x.flip(0, -1),
            "roll": lambda x: x.roll((1, -2), (1, 3)),
            "roll_flat": lambda x: x.roll(7),
            "repeat": lambda x: x.repeat(2, 1, 3, 1, 2),
            "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
            "repeat_interleave_flat": lambda x: x.repeat_interleave(2),
            "tile": lambda x: x.tile((2, 2)),
            "pixel_shuffle": lambda x: torch.pixel_shuffle(x.reshape(2, 4, 3, 5), 2),
            "pixel_unshuffle": lambda x: torch.pixel_unshuffle(x[..., :4], 2),
            "contiguous": lambda x: x.transpose(0, 1).contiguous(),
            "type_as": lambda x: x.type_as(x.half()),
        },
        torch.randn(2, 3, 4, 5),
    )


def test_joins() -> None:
    check_operators(
        {
            "cat": lambda x, y: torch.cat([x, y, x, y, x], 1),
            "cat_types": lambda x, y: torch.cat([x, y.half()], 1),
            "cat_legacy_empty": lambda x, y: torch.cat([torch.zeros(0), x]),
            "stack": lambda x, y: torch.stack([x, x + 1, x + 2], -1),
            "stack_first": lambda x, y: torch.stack([x[0], y[0, :3], x[1]]),
            "hstack": lambda x, y: torch.hstack([x, y]),
            "vstack": lambda x, y: torch.vstack([x, y[:, :3]]),
        },
        torch.randn(2, 3),
        torch.randn(2, 4),
    )


def _depth(e: Expr) -> int:
    inner = max((_depth(c) for c in children(e)), default=0)
    return inner + isinstance(e, Select)


def test_cat_is_a_balanced_tree() -> None:
    many = Operators({"cat": lambda x: torch.cat([x + k for k in range(16)])})
    last = capture(many, (torch.randn(2, 3),)).program.body[-1]
    assert isinstance(last, Compute)
    assert _depth(last.body) == 4


def _axes(*extents: int) -> tuple[Axis, ...]:
    return tuple(Axis(f"i{k}", n) for k, n in enumerate(extents))


def test_reshape_index_stays_simple() -> None:
    i = _axes(128, 12, 64)
    assert reshape_index((128, 768), (128, 12, 64), i) == (
        i[0],
        add(mul(i[1], idx(64)), i[2]),
    )
    j = _axes(128, 768)
    assert reshape_index((128, 12, 64), (128, 768), j) == (
        j[0],
        Binary("floordiv", j[1], idx(64)),
        Binary("mod", j[1], idx(64)),
    )
    k = _axes(1, 128, 768)
    assert reshape_index((128, 768), (1, 128, 768), k) == (k[1], k[2])
    assert reshape_index((1, 128, 768), (128, 768), j) == (idx(0), j[0], j[1])
    assert reshape_index((), (1, 1), _axes(1, 1)) == ()


def test_lists_of_one_empty_tensor() -> None:
    check_operators(
        {
            "unbind": lambda x: x[:0, :1].unbind(1),
            "split": lambda x: x[:0].split(3),
            "chunk": lambda x: x[:, :0].chunk(1, 1),
        },
        torch.randn(4, 3),
    )
