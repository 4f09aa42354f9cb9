"""Recurrent networks that run as long as their data says: each a loop in the network itself, with the step that others call from the host.

NASRNN (Zoph and Le, 2017), a decoder of LSTM cells (Sutskever et al., 2014), a tree LSTM (Tai et al., 2015): the cases of Cocktailer (Zhang et
al., OSDI 2023). All lengths are arguments.
"""

import torch
from torch import Tensor, nn
from torch._higher_order_ops.while_loop import while_loop

from bench.zoo.weights import build

Made = tuple[nn.Module, tuple[Tensor, ...]]


class NASRNN(nn.Module):
    """The cell that Zoph and Le's search found, as TensorFlow's `NASCell` has it without biases, over a sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.of_input = nn.Linear(width, 8 * width, bias=False)
        self.of_state = nn.Linear(width, 8 * width, bias=False)

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The next output and cell of [batch, width] each."""
        i, m = self.of_input(x).chunk(8, -1), self.of_state(h).chunk(8, -1)
        first = (i[0] + m[0]).sigmoid() * (i[1] + m[1]).relu()
        second = (i[2] + m[2]).sigmoid() + (i[3] * m[3]).relu()
        third = (i[4] + m[4]).tanh() * (i[5] + m[5]).sigmoid()
        fourth = (i[6] + m[6]).tanh() + (i[7] + m[7]).sigmoid()
        c = (first.tanh() + c).tanh() * second.tanh()
        return (c * (third.tanh() + fourth.sigmoid()).tanh()).tanh(), c

    def forward(self, x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """x: [most, batch, width], of which `count` steps are read."""

        def more(t: Tensor, *_: Tensor) -> Tensor:
            return t < count

        def step(t: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
            return (t + 1, *self.step(x.index_select(0, t[None]).squeeze(0), h, c))

        zeros = torch.zeros_like(x[0])
        _, h, c = while_loop(more, step, (torch.zeros_like(count), zeros, zeros.clone()))
        return h, c


class WordDecoder(nn.Module):
    """LSTM cells, one above the other, that write words until the stop word."""

    def __init__(self, words: int, width: int, cells: int, most: int) -> None:
        super().__init__()
        self.width, self.most = width, most
        self.words = nn.Embedding(words, width)
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(cells))
        self.head = nn.Linear(width, words)

    def step(self, word: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The word after [1] `word`, and the states [cells, 1, width]."""
        x, new = self.words(word), []
        for k, cell in enumerate(self.cells):
            new.append(cell(x, (h[k], c[k])))
            x = new[-1][0]
        hs, cs = (torch.stack(parts) for parts in zip(*new, strict=True))
        return self.head(x).argmax(-1), hs, cs

    def forward(self, word: Tensor, h: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
        """How many words were written, and the words, 0 behind them. word: [1], the first. h: what is told. stop: the last word."""

        def more(n: Tensor, word: Tensor, *_: Tensor) -> Tensor:
            return (n < self.most) & (word[0] != stop)

        def step(n: Tensor, word: Tensor, h: Tensor, c: Tensor, written: Tensor) -> tuple[Tensor, ...]:  # fmt: skip
            word, h, c = self.step(word, h, c)
            return n + 1, word, h, c, written.index_copy(0, n[None], word)

        written = torch.zeros(self.most, dtype=torch.int64, device=h.device)
        start = (torch.zeros_like(stop), word, h, torch.zeros_like(h), written)
        n, *_, written = while_loop(more, step, start)
        return n, written


class TreeLSTM(nn.Module):
    """A binary tree of words, recursion by an explicit stack: nodes come in postfix order, a word pushes its vector, -1 joins the two on top."""

    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        self.width, self.depth = width, depth
        self.words = nn.Embedding(words, width)
        self.leaves = nn.Linear(width, 3 * width)
        self.inner = nn.Linear(2 * width, 5 * width)

    def leaf(self, word: Tensor) -> tuple[Tensor, Tensor]:
        """Output and cell, [1, width] each, of the [1] word."""
        i, o, u = self.leaves(self.words(word)).chunk(3, -1)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c

    def join(self, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The same of two subtrees [2, width]."""
        i, left, right, o, u = self.inner(h.reshape(1, -1)).chunk(5, -1)
        new = i.sigmoid() * u.tanh() + left.sigmoid() * c[:1] + right.sigmoid() * c[1:]
        return o.sigmoid() * new.tanh(), new

    def forward(self, nodes: Tensor, count: Tensor) -> Tensor:
        """[width] of the root. nodes: [most], of which `count` are the tree. Its stack never has more than `depth` entries."""

        def more(k: Tensor, *_: Tensor) -> Tensor:
            return k < count

        def step(k: Tensor, top: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
            node = nodes.index_select(0, k[None])
            is_leaf = node[0] >= 0

            def leaf(*_: Tensor) -> tuple[Tensor, Tensor]:
                return self.leaf(node.clamp(min=0))

            def join(h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
                below = torch.stack((top - 2, top - 1)).clamp(min=0)
                return self.join(h.index_select(0, below), c.index_select(0, below))

            own_h, own_c = torch.cond(is_leaf, leaf, join, (h, c))
            at = torch.where(is_leaf, top, top - 2)
            h, c = h.index_copy(0, at[None], own_h), c.index_copy(0, at[None], own_c)
            return k + 1, at + 1, h, c

        zero = torch.zeros_like(count)
        rows = torch.zeros(self.depth, self.width, dtype=self.leaves.weight.dtype, device=nodes.device)  # fmt: skip
        return while_loop(more, step, (zero, zero.clone(), rows, rows.clone()))[2][0]


def nasrnn(dtype: torch.dtype = torch.float32, *, width: int = 512, steps: int = 100, most: int = 1000) -> Made:  # fmt: skip
    model = build(lambda: NASRNN(width), dtype)
    return model, (torch.randn(most, 1, width, dtype=dtype), torch.tensor(steps))


def word_decoder(
    dtype: torch.dtype = torch.float32, *, words: int = 3797, width: int = 512, cells: int = 2, steps: int = 40, most: int = 100
) -> Made:  # fmt: skip
    """stop: the word that is first written as number `steps`, or the next that is new."""
    model = build(lambda: WordDecoder(words, width, cells, most), dtype)
    with torch.no_grad():
        for cell in model.cells:  # as uneven as trained ones: else a word is followed by itself
            for p in cell.parameters():
                p.mul_(3)
        first, told = torch.tensor([1]), torch.randn(cells, 1, width, dtype=dtype)
    ids: list[int] = []
    with torch.no_grad():
        word, h, c = first, told, torch.zeros_like(told)
        for _ in range(most):
            word, h, c = model.step(word, h, c)
            ids.append(int(word))
    new = (w for k, w in enumerate(ids) if k + 1 >= steps and w not in ids[:k])
    return model, (first, told, torch.tensor(next(new, -1)))


def tree_lstm(
    dtype: torch.dtype = torch.float32, *, words: int = 10000, width: int = 512, leaves: int = 32, most: int = 256, depth: int = 32
) -> Made:  # fmt: skip
    """A random tree."""
    model = build(lambda: TreeLSTM(words, width, depth), dtype)
    nodes = _postfix(leaves, words)
    padding = torch.zeros(most - len(nodes), dtype=torch.int64)
    return model, (torch.cat((torch.tensor(nodes), padding)), torch.tensor(len(nodes)))


def _postfix(leaves: int, words: int) -> list[int]:
    if leaves == 1:
        return [int(torch.randint(words, ()))]
    left = int(torch.randint(1, leaves, ()))
    return [*_postfix(left, words), *_postfix(leaves - left, words), -1]
