"""Updates in place that become new values without PyTorch's second trace, and those that do not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.export import ExportedProgram

from monotile.frontends.torch.export import export
from monotile.frontends.torch.rewriting.aliasing import changed
from monotile.frontends.torch.rewriting.in_place import without_updates
from tests.frontend.against import Operators, check_operators

T = torch.Tensor


def _residual(x: T) -> Any:
    y = F.relu(x.exp(), inplace=True)
    z = y + 1
    y += x
    return y, F.dropout(y.flatten(1), training=False, inplace=True), z


def _masked(x: T) -> Any:
    made = torch.zeros_like(x)
    for k, (a, b) in enumerate(((0, 2), (1, 3))):
        made[a:b, 1:] = k + 1
        made[a, 0] += x[a, 1]
    return made * 2


def _read_before(x: T) -> Any:
    y = x.exp()
    before = y.sum()
    y.mul_(2).clamp_(max=3)
    view = y.view(-1)
    return before, view, y


def _zeroed(x: T) -> Any:
    y = x.exp()
    y[1].zero_()
    y.masked_fill_(y > 2, 0.5)
    return y.swapaxes(0, 1)


def _part_of_a_view(x: T) -> Any:
    y = x.exp().view(2, -1)
    y[:, 1:3] = 7.0
    return y


def _on_a_side(x: T) -> Any:
    """Of a Python `if`, which becomes a subgraph."""
    y = x.exp()
    if x.sum() > 100:
        y.index_add_(0, torch.tensor([1, 1]), x[:2].tan().cumsum(1))
    else:
        y[1] += x[2].softmax(0)
    return y


SIMPLE: dict[str, Callable[[T], Any]] = {
    "a residual": _residual,
    "a mask": _masked,
    "read before": _read_before,
    "zeroed": _zeroed,
    "part of a view": _part_of_a_view,
    "on a side": _on_a_side,
    "itself": lambda x: x.exp().add_(x.exp()).relu_(),
    "one of two": lambda x: (x.exp().chunk(2)[0].relu_(), x * 2),
    "padded rows": lambda x: F.embedding_bag(
        torch.arange(4), x.exp(), torch.tensor([0, 1]), padding_idx=2
    ),
}


def _other_view(x: T) -> Any:
    y = x.exp()
    row = y[0]
    y += 1
    return row, y


def _whole(x: T) -> Any:
    y = x.exp()
    y.view(-1)[2:5] = 1
    return y


def _wider(x: T) -> Any:
    y = x.half().exp()
    y += x
    return y


OTHERS: dict[str, Callable[[T], Any]] = {
    "seen through another view": _other_view,
    "of what is read as a whole": _whole,
    "of a wider type": _wider,
    "of an argument": lambda x: x.relu_() * 2,
}


def _updates(exported: ExportedProgram) -> list[Any]:
    graphs = [m.graph for m in exported.graph_module.modules() if isinstance(m, fx.GraphModule)]
    return [n for graph in graphs for n in graph.nodes if any(changed(n))]


@pytest.mark.parametrize("name", SIMPLE)
def test_a_new_value_is_what_the_update_leaves(name: str) -> None:
    x = torch.randn(4, 6)
    exported = export(Operators({name: SIMPLE[name]}), (x,))
    plain = without_updates(exported)
    assert not _updates(plain)
    found, want = plain.module()(x), exported.module()(x)
    torch.testing.assert_close(found, want, rtol=0, atol=0)
    check_operators({name: SIMPLE[name]}, x)


@pytest.mark.parametrize("name", OTHERS)
def test_an_update_that_more_can_see_stays(name: str) -> None:
    exported = export(Operators({name: OTHERS[name]}), (torch.randn(4, 6),))
    assert _updates(exported)
    assert without_updates(exported) is exported
    if "argument" not in name:
        check_operators({name: OTHERS[name]}, torch.randn(4, 6))
