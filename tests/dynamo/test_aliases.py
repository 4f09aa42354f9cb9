"""Which results of a graph share memory, and how they lie in it, is as in PyTorch: seen by writing to each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from monotile.dynamo.backend import backend
from monotile.dynamo.graph import Graph

X, CUBE = torch.randn(3, 4), torch.randn(3, 4, 8)
IMAGE = torch.randn(2, 4, 5, 5)
LAST = IMAGE.to(memory_format=torch.channels_last)
CONV, LSTM = nn.Conv2d(4, 8, 3, padding=1), nn.LSTM(8, 8, batch_first=True)
FILTERS_LAST = nn.Conv2d(4, 8, 3, padding=1).to(memory_format=torch.channels_last)


def ways(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Copies or views, as `y` lies."""
    d = y.dim()
    last = y.permute(0, *range(2, d), 1) if d > 2 else y.t()
    return y, y.contiguous(), y.reshape(-1), last.reshape(-1), last.contiguous()


def attention(x: torch.Tensor) -> Any:
    q = x.view(3, 4, 2, 4).transpose(1, 2)
    y = F.scaled_dot_product_attention(q, q, q)
    return y, y.transpose(1, 2).reshape(3, 4, 8), y.reshape(-1)


def same(x: torch.Tensor) -> Any:
    y = x + 1
    same = y.float(), y.contiguous(), y.detach(), y.to(torch.float32), F.dropout(y, 0.5, False)
    return y, *same, y.clone(), y.to(torch.float32, copy=True), torch.cat([y]), y * 1


def parts(x: torch.Tensor) -> Any:
    y = x.relu() + 1
    return y, *y.chunk(2, 1), *y.split(2), *y.unbind(1), y[0].clone(), y[0] * 1, y.ravel()


def changed(x: torch.Tensor) -> Any:
    x.t().mul_(2)
    y = x + 1
    y[0].add_(1)
    return x[1], x.t(), x.reshape(-1), y.t(), y.t().contiguous()


def shapes(x: torch.Tensor) -> Any:
    y = (x + 1).t()
    return (
        y,
        y.expand(2, 4, 3),
        y.flatten(),
        y.t().flatten(),
        y.unsqueeze(0),
        y.diagonal(),
        y.half(),
    )


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "arguments": (lambda x: ways(x), (X,)),
    "transposed argument": (lambda x: ways(x), (X.t(),)),
    "argument, channels last": (lambda x: ways(x), (LAST,)),
    "transposed": (lambda x: ways((x + 1).t()), (X,)),
    "of a transposed": (lambda x: ways(F.gelu(x.transpose(0, 1))), (CUBE,)),
    "sorted": (lambda x: ways(x.t().sort(0)[0]), (X,)),
    "sum, channels last": (lambda x, y: ways(x + y), (LAST, IMAGE)),
    "convolution, channels last": (lambda x: ways(CONV(x)), (LAST,)),
    "convolution, filters channels last": (lambda x: ways(FILTERS_LAST(x)), (IMAGE,)),
    "pooling, channels last": (lambda x: ways(F.max_pool2d(x, 2)), (LAST,)),
    "ambiguous": (
        lambda x: ways((x + 1).to(memory_format=torch.channels_last)),
        (torch.randn(2, 1, 3, 3),),
    ),
    "recurrence": (lambda x: ways(LSTM(x)[0]), (CUBE,)),
    "attention": (attention, (CUBE,)),
    "the same": (same, (X,)),
    "parts": (parts, (X,)),
    "changed": (changed, (X,)),
    "changed by what is computed": (lambda x: (x.add_(x.sum(0) * 2).view(-1), x * 2), (X,)),
    "shapes": (shapes, (X,)),
}


def traced(f: Callable[..., Any]) -> tuple[Callable[..., Any], list[Graph]]:
    """`f` through torch.compile, and the graphs that Dynamo makes of it in its calls."""
    torch._dynamo.reset()
    graphs: list[Graph] = []

    def recorded(module: torch.fx.GraphModule, example: Any) -> Graph:
        graphs.append(backend(module, example, options={"cache": False}))
        return graphs[-1]

    return torch.compile(f, backend=recorded), graphs


@pytest.mark.parametrize("name", CASES)
def test_results_share_memory_as_in_pytorch(name: str) -> None:
    f, args = CASES[name]
    fast, graphs = traced(f)
    with torch.no_grad():
        count = len(pytree.tree_leaves(f(*(x.clone() for x in args))))
        for k in range(count):
            seen: list[list[torch.Tensor]] = []
            for call in (f, fast):
                given = [x.clone() for x in args]
                results = pytree.tree_leaves(call(*given))
                if not _repeats(results[k]):
                    results[k].add_(1)
                seen.append([*results, *given])
            torch.testing.assert_close(seen[1], seen[0])
            assert [_steps(x) for x in seen[1]] == [_steps(x) for x in seen[0]]
    assert not any(g.reasons for g in graphs)


def test_views_of_open_sizes() -> None:
    """Rows are taken by a range of the call's length, as CLIP does at the end of each text, and a result is another one transposed."""

    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x[torch.arange(x.shape[0]), x[..., 0].argmax(-1)] @ w
        return y.t(), y

    fast, graphs = traced(f)
    with torch.no_grad():
        for n in (4, 6, 9):
            args = torch.randn(n, 5, 8), torch.randn(8, 3)
            found, right = fast(*args), f(*args)
            torch.testing.assert_close(found, right)
            assert [x.stride() for x in found] == [x.stride() for x in right]
            assert found[0].data_ptr() == found[1].data_ptr()
    assert [(g.kernels, g.reasons) for g in graphs] == [(1, ()), (1, ())]


def test_sizes_beside_views() -> None:
    """Sizes among the results, and in views."""

    def f(x: torch.Tensor) -> Any:
        n, m = x.shape
        y = x.cumsum(0)
        return y.t(), y, y.view(n * 2, m // 2), n * m + n + m

    fast, graphs = traced(f)
    with torch.no_grad():
        for n, m in ((4, 6), (6, 8), (9, 2)):
            x = torch.randn(n, m)
            found, right = fast(x), f(x)
            torch.testing.assert_close(found, right)
            assert len({y.data_ptr() for y in found[:3]}) == 1
    assert not any(g.reasons for g in graphs)


def _steps(x: torch.Tensor) -> tuple[int, ...]:
    return tuple(s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1)


def _repeats(x: torch.Tensor) -> bool:
    """Whether some of its elements are one in memory: PyTorch refuses to write there."""
    return any(s == 0 and n > 1 for n, s in zip(x.shape, x.stride(), strict=True))
