"""Networks with Python loops over the length of a sequence."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IN, WIDTH = 3, 4


def sequence(n: int) -> tuple[Tensor, ...]:
    """[2, n, IN], what the networks take."""
    return (torch.randn(2, n, IN, generator=torch.Generator().manual_seed(n)),)


class Recurrent(nn.Module):
    """What these models have in common."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w, self.u = nn.Linear(IN, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cell, self.second = nn.LSTMCell(IN, WIDTH), nn.GRUCell(WIDTH, WIDTH)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.w(x) + self.u(h))


class Listed(Recurrent):
    def forward(self, x: Tensor) -> Any:
        h, outs = x.new_zeros(2, WIDTH), []
        for t in range(x.shape[1]):
            h = torch.tanh(self.w(x[:, t]) + self.u(h))
            outs.append(h)
        return (
            torch.stack(outs, 1),
            torch.stack(outs[::-1]),
            torch.cat(outs, 1),
            outs[-1],
            outs[0],
            h,
        )


class Tuple(Recurrent):
    def forward(self, x: Tensor) -> Any:
        state = (torch.zeros(2, WIDTH), torch.zeros(2, WIDTH))
        outs: list[Tensor] = []
        for t in range(x.size(1)):
            state = self.cell(x[:, t, :], state)
            outs += [state[0]]
        return torch.stack(outs, dim=1), *state


class Two(Recurrent):
    """Names for both, and the list made anew in each iteration."""

    def forward(self, x: Tensor) -> Any:
        h = c = torch.zeros(2, WIDTH)
        outs = []
        for t in range(x.size(1)):
            h, c = self.cell(x[:, t], (h, c))
            outs = outs + [h.unsqueeze(1)]  # noqa: RUF005
        return torch.cat(outs, dim=1), c


class Written(Recurrent):
    def forward(self, x: Tensor) -> Any:
        out = x.new_zeros(2, x.shape[1], WIDTH)
        h = out[:, 0] * 0
        for t in range(x.shape[1]):
            h = self.step(x[:, t], h)
            out[:, t] = h
        return out, h


class Backward(Recurrent):
    def forward(self, x: Tensor) -> Any:
        n = x.shape[1]
        h, outs = torch.zeros(2, WIDTH), []
        for t in range(n - 1, -1, -1):
            h = self.step(x[:, t], h)
            outs.append(h)
        outs.reverse()
        return torch.stack(outs, 1)


class Unbound(Recurrent):
    def forward(self, x: Tensor) -> Any:
        h, outs = torch.zeros(2, WIDTH), []
        for k, (row, again) in enumerate(zip(x.unbind(1), x.split(1, dim=1), strict=False)):
            h = self.step(row, h) * (k + 1) + self.w(again)[:, 0]
            outs.append(h)
        for row in reversed(x.unbind(1)):
            h = self.step(row, h)
        for row in x.transpose(0, 1):
            h = self.step(row, h)
        return torch.stack(outs), h


class Stacks(Recurrent):
    """The second layer loops over the first one's list."""

    def forward(self, x: Tensor) -> Any:
        h, lower, upper = torch.zeros(2, WIDTH), [], []
        for t in range(x.shape[1]):
            h = self.step(x[:, t], h)
            lower.append(h)
        g = torch.zeros(2, WIDTH)
        for h in lower:
            g = self.second(h, g)
            upper.append(g)
        for k in range(len(upper)):
            g = g + upper[k]
        return torch.stack(upper, 1), g


class Both(Recurrent):
    def forward(self, x: Tensor) -> Any:
        ahead, back = [], []
        h = g = torch.zeros(2, WIDTH)
        for t in range(x.shape[1]):
            h = self.step(x[:, t], h)
            ahead.append(h)
            g = self.step(x[:, -t - 1], g)
            back.append(g)
        return torch.cat([torch.stack(ahead, 1), torch.stack(back, 1).flip(1)], -1)


class Last(Recurrent):
    """None before the loop, a flag, and a count."""

    def forward(self, x: Tensor) -> Any:
        h, total, begun, steps = None, 0, False, 0
        for t in range(x.shape[1]):
            if h is None:
                h = torch.ones(2, WIDTH)
            scale = 1.0 if begun else 0.5
            h = self.step(x[:, t], h) * scale
            begun = True
            total = total + h * steps
            steps += 1  # noqa: SIM113
        return h, total


class Inner(Recurrent):
    def forward(self, x: Tensor) -> Any:
        h = torch.zeros(2, IN)
        outs = [h]
        for t in range(x.shape[1]):
            outs.append(torch.sin(x[:, t] + outs[-1]))
        return torch.stack(outs[1:], 1)


class Twice(nn.Module):
    """A loop in a module that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = Inner(), Inner()

    def forward(self, x: Tensor) -> Any:
        return self.other(self.inner(self.inner(x)))


class Kept(Recurrent):
    """States in a list, a dictionary and an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(2, WIDTH)

    def forward(self, x: Tensor) -> Any:
        states = [torch.zeros(2, WIDTH), torch.ones(2, WIDTH)]
        known = {"h": torch.zeros(2, WIDTH), "k": 3}
        self.seen = torch.zeros(2, WIDTH)
        for t in range(x.shape[1]):
            for k in range(2):
                states[k] = self.step(x[:, t], states[k] + k)
            known["h"] = known["h"] * 0.5 + states[1]
            self.seen = self.seen + known["h"] * known["k"]
        return *states, known["h"], self.seen


class Chosen(Recurrent):
    """A branch within, and a loop within."""

    def forward(self, x: Tensor) -> Any:
        h, outs = torch.zeros(2, WIDTH), []
        for t in range(x.shape[1]):
            if t > 0 and h.sum() > 0:
                h = h - 1
            h = self.step(x[:, t], h)
            for s in range(x.shape[1]):
                h = h + self.w(x[:, s]) * 0.1
            outs.append(h)
        return torch.stack(outs, 1)


class Comprehended(Recurrent):
    def forward(self, x: Tensor) -> Any:
        rows = [self.w(x[:, t]) for t in range(x.shape[1])]
        return torch.stack([torch.tanh(row) for row in rows], 1), sum(row * 1 for row in [rows[-1]])


class Ahead(Recurrent):
    """From the second on, with what comes before it."""

    def forward(self, x: Tensor) -> Any:
        h = self.w(x[:, 0])
        outs = [h]
        for t in range(1, x.shape[1]):
            near = x[:, t - 1 : t + 1].mean(1) + x.select(1, t) - x.narrow(1, t - 1, 1)[:, 0]
            h = (
                self.step(x[:, t] - x[:, t - 1], h)
                + self.w(x[:, t : t + 1]).squeeze(1)
                + self.w(near)
            )
            outs.append(h)
        return torch.stack(outs, 1)


class Selective(nn.Module):
    """The slow path of Mamba."""

    def __init__(self, inner: int = 6, state: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(inner, 1))
        self.b, self.c, self.dt = nn.Linear(IN, state), nn.Linear(IN, state), nn.Linear(IN, inner)
        self.x, self.d = nn.Linear(IN, inner), nn.Parameter(torch.ones(inner))

    def forward(self, u: Tensor) -> Any:
        x, dt, b, c = self.x(u), F.softplus(self.dt(u)), self.b(u), self.c(u)
        decay = torch.exp(dt[..., None] * -self.a.exp())
        given = dt[..., None] * b[:, :, None] * x[..., None]
        state = x.new_zeros(u.shape[0], *self.a.shape)
        outs = []
        for i in range(u.shape[1]):
            state = decay[:, i] * state + given[:, i]
            outs.append(torch.matmul(state, c[:, i].unsqueeze(-1))[:, :, 0])
        return torch.stack(outs, dim=1) + x * self.d


class Decoder(Recurrent):
    """Attends to what an encoder gives, whose length is another size."""

    def forward(self, x: Tensor, states: Tensor) -> Any:
        h = states.mean(1)
        outs, weights = [], []
        for t in range(x.shape[1]):
            weight = (states @ h.unsqueeze(-1)).softmax(1)
            h = self.second(self.w(x[:, t]) + (weight * states).sum(1), h)
            outs.append(h)
            weights.append(weight[..., 0])
        return torch.stack(outs, 1), torch.stack(weights, 1)
