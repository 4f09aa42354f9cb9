"""Models that update buffers and arguments in place, call after call, against PyTorch."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

import monotile
from monotile.config import Options

OPTIONS = Options(cache=False)
Forward = Callable[..., object]


class Model(nn.Module):
    """Buffers a and b, persistent and not, and k, a cache."""

    def __init__(self, forward: Forward, shape: tuple[int, ...] = (3, 4)) -> None:
        super().__init__()
        self.f = forward
        self.register_buffer("a", torch.randn(shape))
        self.register_buffer("b", torch.randn(shape), persistent=False)
        self.register_buffer("k", torch.randn(3, 5, 4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.plain = torch.zeros(3, 4)

    def forward(self, *args: torch.Tensor) -> object:
        return self.f(self, *args)

    def held(self) -> list[torch.Tensor]:
        return [*self.buffers(), self.plain]


X, AT = torch.randn(3, 4), torch.tensor([2])


def pair(*values: object) -> object:
    """The last of some values: statements in a lambda."""
    return values[-1]


def appended(m: Model, x: torch.Tensor, at: torch.Tensor) -> object:
    m.k.index_copy_(1, at, x[:, None])
    return (m.k @ x.t()).softmax(-1)


def reads_the_old(m: Model, x: torch.Tensor, at: torch.Tensor) -> object:
    old = m.k.clone()
    m.k.index_copy_(1, at, old[:, :1] * 2 + x[:, None])
    return (m.k.sum() * old).sum(1)


def twice(m: Model, x: torch.Tensor, at: torch.Tensor) -> object:
    m.k[:, at] = x[:, None]
    old = m.k.clone()
    m.k.index_add_(1, at, x[:, None])
    return m.k - old


def column(m: Model, x: torch.Tensor) -> object:
    m.k[:, 2] = x
    return m.k.sum(1)


def exchanged(m: Model, x: torch.Tensor) -> object:
    t = m.a.clone()
    m.a.copy_(m.b.flip(0))
    m.b.copy_(t)
    return x + m.a


def shifted(m: Model, x: torch.Tensor) -> object:
    """The new value depends on the old one elsewhere."""
    m.a.copy_(torch.cat([m.a[1:], x[:1]]))
    return m.a.sum(0)


def assigned(m: Model, x: torch.Tensor) -> object:
    m.a = m.a * 0.9 + x
    return m.a


CASES: dict[str, tuple[Forward, Sequence[torch.Tensor]]] = {
    "counter": (lambda m, x: pair(m.count.add_(1), x + m.count), [X]),
    "accumulated": (lambda m, x: pair(m.b.mul_(0.5).add_(x), m.b.sum()), [X]),
    "returned": (lambda m, x: m.a.add_(x), [X]),
    "no_result": (lambda m, x: pair(m.a.copy_(x), None), [X]),
    "old_and_new": (lambda m, x: (lambda o: pair(m.a.add_(x), o * m.a))(m.a.clone()), [X]),
    "rolled": (lambda m, x: pair(m.a.copy_(torch.roll(m.a, 1, 0)), x + m.a[0]), [X]),
    "softmax": (lambda m, x: pair(m.a.copy_(m.a.softmax(-1) * 3), x + m.a), [X]),
    "product": (lambda m, x: pair(m.a.copy_(m.a @ x.t() @ x / 9), m.a.t() @ m.a), [X]),
    "from_each_other": (lambda m, x: pair(m.b.copy_(m.a), m.a.add_(x), m.b * 2), [X]),
    "plain_attribute": (lambda m, x: pair(m.plain.add_(x), m.plain * 2), [X]),
    "argument": (lambda m, x: x.add_(1), [X]),
    "part_of_an_argument": (lambda m, x: pair(x[1:].add_(1), x * 2), [X]),
    "two_arguments": (lambda m, x, y: pair(x.add_(y), y.mul_(x), x + y), [X, X + 1]),
    "appended": (appended, [X, AT]),
    "reads_the_old": (reads_the_old, [X, AT]),
    "twice": (twice, [X, AT]),
    "column": (column, [X]),
    "exchanged": (exchanged, [X]),
    "shifted": (shifted, [X]),
    "assigned": (assigned, [X]),
}


@pytest.mark.parametrize("name", CASES)
def test_updates_last(name: str) -> None:
    f, args = CASES[name]
    torch.manual_seed(0)
    model = Model(f).eval()
    twin = copy.deepcopy(model)
    mine, theirs = [x.clone() for x in args], [x.clone() for x in args]
    fast = monotile.compile(model, mine, target="cpu", options=OPTIONS)
    assert fast.kernels == 1
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(fast(*mine), twin(*theirs))
        torch.testing.assert_close([*mine, *model.held()], [*theirs, *twin.held()])


@pytest.mark.parametrize("name", ["appended", "rolled", "exchanged", "two_arguments"])
def test_kernels_for_the_gpu(name: str) -> None:
    f, args = CASES[name]
    fast = monotile.compile(Model(f), tuple(args), target="cuda:sm_90a", options=OPTIONS)
    assert fast.kernels == 1


def test_any_layout_is_updated_where_it_lies() -> None:
    model = Model(lambda m, x: pair(m.a.add_(x), x.mul_(2), m.a * 1)).eval()
    model.a = torch.randn(4, 3).t()
    twin = copy.deepcopy(model)
    fast = monotile.compile(model, (X.clone(),), target="cpu", options=OPTIONS)
    both = torch.randn(3, 2, 4)
    theirs = both.clone()
    torch.testing.assert_close(fast(both[:, 0]), twin(theirs[:, 0]))
    torch.testing.assert_close([both, model.a], [theirs, twin.a])
    with torch.no_grad():
        model.a.zero_()
    torch.testing.assert_close(fast(both[:, 1]), both[:, 1] / 2)


def test_caches_of_repeated_layers() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 24) for _ in range(4))
            for k in range(4):
                self.register_buffer(f"k{k}", torch.zeros(6, 8))
                self.register_buffer(f"v{k}", torch.zeros(6, 8), persistent=False)

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            for n, layer in enumerate(self.layers):
                q, k, v = layer(x).chunk(3, -1)
                keys, values = getattr(self, f"k{n}"), getattr(self, f"v{n}")
                keys.index_copy_(0, at, k)
                values.index_copy_(0, at, v)
                scores = (q @ keys.t()).masked_fill(torch.arange(6) > at, -1e9)
                x = x + scores.softmax(-1) @ values
            return x

    model = Layers().eval()
    twin = copy.deepcopy(model)
    fast = monotile.compile(
        model, (torch.randn(1, 8), torch.tensor([0])), target="cpu", options=OPTIONS
    )
    for step in range(6):
        x, at = torch.randn(1, 8), torch.tensor([step])
        with torch.no_grad():
            torch.testing.assert_close(fast(x, at), twin(x, at))
    torch.testing.assert_close(list(model.buffers()), list(twin.buffers()))


def test_saved_loaded_and_cached(tmp_path: Path) -> None:
    model = Model(CASES["accumulated"][0]).eval()
    options = Options(cache_dir=str(tmp_path / "cache"))
    for _ in range(2):  # the second comes from the cache
        fast = monotile.compile(model, (X,), target="cpu", options=options)
        want = 0.5 * model.b + X
        torch.testing.assert_close(fast(X), want.sum())
        torch.testing.assert_close(model.b, want)
    fast.save(tmp_path / "m.monotile")
    again = monotile.load(tmp_path / "m.monotile")
    state = torch.zeros(3, 4)
    again.load_parameters({"b": state})
    again(X)
    torch.testing.assert_close(state, X)
    torch.testing.assert_close(model.b, want)


def test_memory_that_is_shared_is_refused() -> None:
    model = Model(lambda m, x, y: pair(x.add_(1), x + y))
    fast = monotile.compile(model, (X.clone(), X), target="cpu", options=OPTIONS)
    x = X.clone()
    with pytest.raises(monotile.InputError, match=r"args\[1\] shares memory with args\[0\]"):
        fast(x, x)
    both = torch.randn(3, 2, 4)
    want = both[:, 0] + 1 + both[:, 1]
    torch.testing.assert_close(fast(both[:, 0], both[:, 1]), want)


def test_autograd_is_told() -> None:
    fast = monotile.compile(Model(CASES["argument"][0]), (X,), target="cpu", options=OPTIONS)
    x = X.clone()
    before = x._version
    fast(x)
    assert x._version > before
