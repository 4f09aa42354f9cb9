"""Networks with a Python `if` on a tensor's value, as users write them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

WIDTH = 16


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = mlp(), mlp(), mlp(), mlp()


class IfElse(Base):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            y = self.a(x)
        else:
            y = self.b(x).softmax(-1)
        return y + x


class Elif(Base):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean()
        if mean > 0.5:
            x = self.a(x)
            z = x.sum()
        elif mean > 0 and x.amax() < 9:
            z = self.b(x).sum()
            x = x + 1
        elif not (mean > -0.5):
            z = self.d(x).mean()
        else:
            x, z = self.c(x), x.amax()
        return x, z


class Inner(Base):
    """An `if` in a side, with a number's `if` and a loop around."""

    def forward(self, x: Tensor, times: int = 2) -> Tensor:
        for k in range(times):
            if x.mean() > 0:
                x = self.a(x)
                if k == 0:
                    x = x * 2
                if x.amax() > 1:
                    x = self.b(x) / x.amax()
            else:
                for layer in (self.c, self.d):
                    x = x + layer(x)
        return x


class Returns(Base):
    def forward(self, x: Tensor) -> Tensor:
        if x.mean() > 0.5:
            return self.a(x)
        y = self.b(x)
        if y.mean() > 0:
            y = self.c(y)
            return y - 1
        if x.mean() < -0.5:
            return y
        else:
            z = self.d(y)
        return y + z


class Updates(Base):
    """`+=` and the like: of a local tensor, of a row, of what a side makes itself."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + 0
        y = self.a(x)
        if x.sum() > 0:
            y += self.b(x)
            x[1] = 3
            x[:, :2] *= y[:, :2]
        else:
            z = self.c(x)
            z -= 1
            y.mul_(z)
        return x, y


class Expression(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x) if x.sum() > 0 else self.b(x)
        return self.c(y if (y.mean() > 0 and x.sum() < 3) else x) * (2 if x.dim() > 1 else 1)


class Item(Base):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum().item() > 0:
            x = self.a(x)
        if (x > 1).any().item():
            return self.b(x)
        return x


class Gated(nn.Module):
    """A layer that its own gate leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.layer = nn.Linear(WIDTH, 1), mlp()

    def forward(self, x: Tensor) -> Tensor:
        if self.gate(x.mean(0)) <= 0:
            return x
        return x + self.layer(x)


class Skip(nn.Module):
    """SkipNet; one of its layers is used twice."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Gated() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in [*self.layers, self.layers[0]]:
            x = layer(x)
        return x


class Continues(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Gated() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.layers:
            if block.gate(x.mean(0)) <= 0:
                continue
            x = x + block.layer(x)
        return x


class Exits(nn.Module):
    """An answer as soon as one is sure enough; layers may be left out on the way."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Gated() for _ in range(layers))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(layers))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for k, (layer, head) in enumerate(zip(self.layers, self.heads, strict=True)):
            x = layer(x)
            y = (3 * head(x.mean(0))).softmax(-1)
            if y.max() > 0.7:
                return y, torch.tensor(k)
        return y, torch.tensor(-1)


class Breaks(Base):
    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b, self.c):
            if x.abs().mean() < 0.5:
                break
            x = layer(x)
        else:
            x = x * 3
        return self.d(x)


class Numbers(Base):
    """What differs between the sides is no tensor, or has another shape."""

    def forward(self, x: Tensor) -> Tensor:
        layers, factor = [self.a], 1.0
        if x.mean() > 0:
            factor = 2.5
            layers.append(self.b)
            x = x[:2]
        for layer in layers:
            x = layer(x)
        return x.mean(0) * factor


class Kept(Base):
    """Buffers that one side changes, by an operator in place, by `+=`, and by assignment."""

    calls: Tensor
    seen: Tensor
    best: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(3, WIDTH))
        self.register_buffer("best", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.calls += 1
            self.seen[1:].add_(self.a(x)[:1])
            y = self.seen.mean(0)
        else:
            self.best.copy_(self.b(x)[0])
            y = self.best + self.calls
        if y.mean() > 0:
            self.best = self.best + y
        return y - self.seen[0]


class Helper(nn.Module):
    """The choice is in a function, in a generator and in a module within."""

    def __init__(self) -> None:
        super().__init__()
        self.gated, self.a = Gated(), mlp()

    def large(self, x: Tensor) -> bool:
        return bool(x.amax() > 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.gated(x)
        if self.large(x):
            x = x / 2
        if any(row.mean() > 0.4 for row in x[:2]):
            x = self.a(x)
        return self.gated(x)


class While(Base):
    """At most so many times."""

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        steps = torch.zeros((), dtype=torch.int64)
        for _ in range(3):
            if not (x.abs().amax() > 1):
                break
            x = self.a(x) / 2
            steps = steps + 1
        while x.sum() > 0 and steps < 3:
            x, steps = x - 1, torch.full_like(steps, 3)
            if steps.dim():
                raise ValueError(steps)
            break
        return x, steps


class Temporary(Base):
    """A name that both sides use for something else, and loops left in several ways."""

    def forward(self, x: Tensor) -> Tensor:
        n, t = 2, x * 2
        if x.sum() > 0:
            n, t = 3, self.a(x)
            y = t * n
        else:
            y = self.b(t) * n
        for k, layer in enumerate((self.c, self.d, self.c)):
            if y.amax() > 4:
                if k == 1:
                    y = y - 1
                    continue
                return y / y.amax()
            elif y.amin() < -3:
                break
            if k == 2:
                break
            y = y + layer(x)
        return y


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    branches: int  # at least, in the Program


CASES = {
    "if_else": Case(IfElse, 1),
    "elif": Case(Elif, 3),
    "inner": Case(Inner, 3),
    "returns": Case(Returns, 3),
    "updates": Case(Updates, 1),
    "expression": Case(Expression, 1),
    "item": Case(Item, 2),
    "skip": Case(Skip, 1),
    "continues": Case(Continues, 1),
    "exits": Case(Exits, 4),
    "breaks": Case(Breaks, 3),
    "numbers": Case(Numbers, 1),
    "kept": Case(Kept, 2),
    "helper": Case(Helper, 3),
    "while": Case(While, 3),
    "temporary": Case(Temporary, 4),
}


def made(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return CASES[name].make().eval().requires_grad_(False)


def inputs() -> list[Tensor]:
    """[3, WIDTH]: of either sign, small and large."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(3, WIDTH, generator=g)
    return [x, x.abs() + 1, -x.abs() - 1, x.abs() / 4, x / 10, -x.abs() / 4, x * 3, x.flip(0) + 0.2]
