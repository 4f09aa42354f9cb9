"""The same, of Python that a network may have round its loops."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.frontend.loop_networks import IN, WIDTH, Recurrent


class Left(Recurrent):
    """Left where data say so, by a break and by a return."""

    def forward(self, x: Tensor) -> Any:
        h = g = torch.zeros(2, WIDTH)
        for t in range(x.shape[1]):
            h = self.step(x[:, t], h)
            if h.sum() > 1:
                break
        for t in range(x.shape[1]):
            g = self.step(x[:, t], g)
            if g.sum() > 1:
                return g, g
        return h, g


class Updated(Recurrent):
    """A buffer, tensors in place, and slices of results."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2, WIDTH))
        self.count: Tensor

    def forward(self, x: Tensor) -> Any:
        n = x.shape[1]
        out, steps, h, k = torch.empty(n, 2, WIDTH), torch.zeros(2, n, WIDTH), torch.zeros(2, WIDTH), torch.zeros(2, WIDTH)  # fmt: skip
        for t in range(n):
            h += self.w(x[:, t])
            out[t] = h
            steps[:, t : t + 1, :] = h[:, None]
            steps[:, t] *= 2
            k = k * 0.5
            k.add_(h)
            self.count.add_(k)
            self.count[0] *= 0.5
        return out, steps, h, k, self.count + 0


class Stepped(Recurrent):
    """Ranges with ends and steps, one of which may have no iterations, and what is computed from their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(16, IN)

    def forward(self, x: Tensor) -> Any:
        n, h, outs = x.shape[1], torch.zeros(2, WIDTH), []
        for t in range(0, n, 2):
            h = self.step(x[:, t], h)
            outs.append(h)
        for t in range(n // 2):
            h = self.step(x[:, t * 2], h) / (t + 1)
        for t in range(2, n):
            h = self.step(x[:, t - 2] + self.places.weight[t], h) * (t / n)
        for t in reversed(range(n)):
            before = torch.where(torch.arange(n)[None, :, None] <= t, x, 0.0).sum(1)
            h = self.step(before + self.places(torch.full((2,), t)), h)
        return h, torch.stack(outs)


class Items(Recurrent):
    """Tuples, several an iteration, at both ends, in lists and dictionaries of lists; names for one list; how long it is."""

    def forward(self, x: Tensor) -> Any:
        pairs: list[Any] = []
        ahead: list[Tensor] = []
        several = same = [x[:, 0]]
        of: dict[str, list[Tensor]] = {"a": [], "b": []}
        for t in range(x.shape[1]):
            pairs.append((x[:, t], x[:, t].sum() * len(pairs)))
            ahead.insert(0, x[:, t])
            several.append(x[:, t] * 2)
            several.append(x[:, t] * 3)
            of["b"] += [x[:, t] * 4]
        several.append(x[:, 0] * 5)
        total = 0
        for a, b in pairs:
            total = total + a * b
        return (
            total,
            torch.stack(ahead),
            torch.stack(same, 1),
            torch.cat(several[1:-1], -1),
            torch.stack(of["b"]),
        )


class Begins(Recurrent):
    """Values that have another type before the first iteration."""

    def forward(self, x: Tensor) -> Any:
        outs: list[Tensor] = []
        state: dict[str, Tensor] = {}
        for t, row in enumerate(x.unbind(1)):
            if t == 0:
                h = row
            else:
                h = h * 0.5 + outs[-1] + state["row"]  # pyright: ignore[reportPossiblyUnboundVariable]
            state["row"] = row
            outs.append(h)
        return torch.stack(outs), h, state["row"]  # pyright: ignore[reportPossiblyUnboundVariable]


class Remembered(Recurrent):
    """A cache that grows by masks, and the loop on one side of an `if`."""

    def forward(self, x: Tensor) -> Any:
        n, outs = x.shape[1], []
        keys = torch.zeros(2, n, WIDTH)
        for t in range(n):
            q = self.w(x[:, t])
            keys[:, t] = q
            scores = (keys @ q.unsqueeze(-1)).squeeze(-1)
            shares = scores.masked_fill(torch.arange(n)[None] > t, -torch.inf).softmax(-1)
            outs.append((shares[..., None] * keys).sum(1))
        h = torch.stack(outs, 1)
        y = h[:, 0] * 0
        if x.sum() > 0:
            for t in range(n):
                y = y + h[:, max(t - 1, 0)] * t
        return h, y


class Chunks(Recurrent):
    def forward(self, x: Tensor) -> Any:
        h = None
        for chunk in torch.chunk(x, x.size(1), dim=1):
            h = self.cell(chunk.squeeze(1), h)
            y = chunk * 2
        assert h is not None
        return *h, y, x.unbind(1)[0], torch.stack(x.unbind(1), 1)  # pyright: ignore[reportPossiblyUnboundVariable]


class Numbered(Recurrent):
    """Rows of a tensor with their numbers, numbers made tensors, and comprehensions within others."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(16, IN)

    def forward(self, x: Tensor) -> Any:
        rows, h, scale = x.transpose(0, 1), torch.ones(2, IN), 0.5
        for i, row in enumerate(rows):
            h *= 0.5
            h = h + row * i + rows[i : i + 1].sum(0) + self.places(torch.tensor([i]))
            h += x.index_select(1, torch.tensor(i)[None])[:, 0] * scale
            scale = scale * 0.5 + i / 3
            whole = x * (i + 1)
        for i, (a, b) in enumerate(zip(rows, rows.flip(0), strict=False), 1):
            h = h + a * b / i
        products = [torch.stack([(a * b).sum(-1) for b in x.unbind(1)], -1) for a in x.unbind(1)]
        doubled = torch.stack(tuple(row * 2 for row in x.unbind(1)))
        return h, whole, torch.stack(products, 1), doubled  # pyright: ignore[reportPossiblyUnboundVariable]
