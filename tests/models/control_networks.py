"""Networks with data-dependent control flow."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

WIDTH = 32


class SkipNet(nn.Module):
    """Layers that a gate leaves out (Wang et al., ECCV 2018)."""

    def __init__(self, layers: int = 5) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(layers))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for gate, layer in zip(self.gates, self.layers, strict=True):
            wanted = gate(x.mean(0)).squeeze() > 0
            x = torch.cond(wanted, lambda x, f=layer: x + f(x), lambda x: x.clone(), (x,))
        return x


class EarlyExit(nn.Module):
    """The same layer again until an answer is sure enough, or the bound is reached."""

    def __init__(self, bound: int = 9) -> None:
        super().__init__()
        self.layer, self.head, self.bound = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4), bound

    def forward(self, x: Tensor, enough: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def unsure(i: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return (i < self.bound) & (y.softmax(-1).amax() < enough)

        def step(i: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            x = torch.tanh(self.layer(x)) + x
            return i + 1, x, 1.5 * self.head(x)

        return while_loop(unsure, step, (torch.zeros((), dtype=torch.int64), x, self.head(x)))


class Decoder(nn.Module):
    """Two LSTM cells that write words until the stop word."""

    def __init__(self, words: int = 20, most: int = 12) -> None:
        super().__init__()
        self.words, self.most = nn.Embedding(words, WIDTH), most
        self.cells = nn.ModuleList(nn.LSTMCell(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, words)

    def forward(self, word: Tensor) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(1, WIDTH)
        written = torch.full((self.most,), -1)

        def goes_on(n: Tensor, word: Tensor, *_: Tensor) -> Tensor:
            return (n < self.most) & (word[0] != 0)

        def step(n: Tensor, word: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            a, b, c, d, written = rest
            a, b = self.cells[0](self.words(word), (a, b))
            c, d = self.cells[1](a, (c, d))
            word = self.head(c).argmax(-1)
            return n + 1, word, a, b, c, d, written.index_copy(0, n.reshape(1), word)

        start = (torch.zeros((), dtype=torch.int64), word, zeros, zeros, zeros, zeros, written)
        n, *_, written = while_loop(goes_on, step, start)
        return n, written


class TreeLSTM(nn.Module):
    """A binary tree in postfix order, by an explicit stack: a leaf is a word, -1 joins the two on top (Tai et al., ACL 2015)."""

    def __init__(self, words: int = 10, depth: int = 8) -> None:
        super().__init__()
        self.words, self.depth = nn.Embedding(words, WIDTH), depth
        self.join = nn.Linear(2 * WIDTH, 5 * WIDTH)

    def forward(self, nodes: Tensor, count: Tensor) -> Tensor:
        def goes_on(k: Tensor, top: Tensor, h: Tensor, c: Tensor) -> Tensor:
            return k < count

        def step(k: Tensor, top: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
            node = nodes.index_select(0, k[None]).squeeze()

            def leaf(h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
                word = self.words(node.clamp(min=0))
                return torch.tanh(word), word.clone()

            def both(h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
                below = torch.stack((top - 2, top - 1)).clamp(min=0)
                i, f, g, o, u = self.join(h.index_select(0, below).flatten()).split(WIDTH)
                left, right = c.index_select(0, below)
                new = i.sigmoid() * u.tanh() + f.sigmoid() * left + g.sigmoid() * right
                return o.sigmoid() * new.tanh(), new

            own_h, own_c = torch.cond(node >= 0, leaf, both, (h, c))
            at = torch.where(node >= 0, top, top - 2)
            h = h.index_copy(0, at.reshape(1), own_h[None])
            c = c.index_copy(0, at.reshape(1), own_c[None])
            return k + 1, at + 1, h, c

        zero, rows = torch.zeros((), dtype=torch.int64), torch.zeros(self.depth, WIDTH)
        _, _, h, _ = while_loop(goes_on, step, (zero, zero.clone(), rows, rows.clone()))
        return h[0]


class Nested(nn.Module):
    """A loop with a branch, a loop inside that, a scan and a map after it; the inner loop may have no iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, times: Tensor) -> tuple[Tensor, ...]:
        def again(i: Tensor, x: Tensor) -> Tensor:
            return i < times

        def step(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            def halve(x: Tensor) -> Tensor:
                def large(y: Tensor) -> Tensor:
                    return y.abs().amax() > 1

                (y,) = while_loop(large, lambda y: (y / 2,), (x,))
                return y + 0.25

            x = torch.cond(i % 2 == 0, lambda x: self.linear(x) * 3, halve, (x,))
            return i + 1, x

        n, y = while_loop(again, step, (torch.zeros((), dtype=torch.int64), x))
        last, sums = scan(lambda c, row: (c + row, c * row), y[0] * 0, y)
        return n, last, sums, torch_map(lambda row: row.softmax(-1), y)


class Never(nn.Module):
    """A loop without an iteration gives what it would have begun with, made before it or given."""

    def forward(self, x: Tensor, most: Tensor) -> tuple[Tensor, ...]:
        mean = torch.tanh((x * x).mean())
        start = (torch.zeros((), dtype=torch.int64), x, mean)

        def goes_on(n: Tensor, x: Tensor, mean: Tensor) -> Tensor:
            return (n < most) & (x.abs().amax() > 0.05)

        return while_loop(goes_on, lambda n, x, mean: (n + 1, x * 0.25, mean.clone()), start)


class Counter(nn.Module):
    """A state that only one side of a branch changes, and one that a loop changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        new = torch.cond(x.sum() > 0, lambda s, x: s + x, lambda s, x: s.clone(), (self.seen, x))
        n, _ = while_loop(
            lambda n, x: x.amax() > 1, lambda n, x: (n + 1, x / 2), (self.steps.clone(), x)
        )
        self.seen.copy_(new)
        self.steps.copy_(n)
        return new * 2


class Case(NamedTuple):
    """A network and calls of it."""

    model: nn.Module
    calls: list[tuple[Tensor, ...]]


def cases() -> dict[str, Case]:
    """By name; weights and arguments from a seed."""
    torch.manual_seed(0)
    number = torch.tensor
    postfix = [
        ([3], 1),
        ([1, 2, -1], 3),
        ([1, 2, -1, 3, 4, -1, -1], 7),
        ([5, 6, 7, -1, -1, 0, 0], 5),
    ]
    trees = [(number(t + [0] * (7 - len(t))), number(n)) for t, n in postfix]
    found = {
        "skip": Case(SkipNet(), [(torch.randn(6, WIDTH),) for _ in range(4)]),
        "early": Case(
            EarlyExit(), [(torch.randn(1, WIDTH), number(x)) for x in (0.1, 0.6, 0.8, 2.0)]
        ),
        "decoder": Case(Decoder(), [(number([k]),) for k in (0, 1, 2, 5, 9)]),
        "tree": Case(TreeLSTM(), trees),
        "never": Case(Never(), [(torch.randn(7, 7), number(n)) for n in (0, 2)]),
        "nested": Case(Nested(), [(torch.randn(3, 8), number(n)) for n in (0, 1, 2, 5)]),
    }
    for case in found.values():
        case.model.eval().requires_grad_(False)
    return found
