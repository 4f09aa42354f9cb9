"""Python's choices by tensors' values. Whole networks with them: `tests/models/test_branches.py`."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn

import monotile
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.ir.program import Branch
from tests.frontend.against import check

LARGE = torch.finfo(torch.float16).max - 1000


class Clamped(nn.Module):
    """As encoders of Hugging Face (BART, Marian) have it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float32 and not torch.isfinite(x).all():
            limit = LARGE
            x = torch.clamp(x, min=-limit, max=limit)
        return x + 1


class Both(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.sum() > 0 or x.max() > 3:
            y, x = x * 2, x - 1
        else:
            y = x
        return x, y


class Nested(nn.Module):
    """Choices within loops and other choices, and one by a number."""

    def forward(self, x: torch.Tensor, times: int = 3) -> torch.Tensor:
        for k in range(times):
            if k > 0:  # noqa: SIM102
                if x.mean() > k:
                    x = x - k
            with torch.no_grad():
                if not (x > 0).any():
                    x = x + 5
        return x


class Scaled(Clamped):
    """Its own `super`, and a name of the function round it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x > 1).any():
            x = x * FACTOR
        return super().forward(x)


class Written(nn.Module):
    """In ways that need care: a default that is a function, a name bound in a test, no tensor in a test."""

    def forward(
        self, x: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor] = lambda x: x + 2
    ) -> torch.Tensor:
        if (rows := x.shape[0]) > 2 and x.dim() == 2:
            x = x * rows
        if not (x.min() > -1) and rows:
            x = change(x)
        return x


FACTOR = 3


def enclosed(factor: float) -> nn.Module:
    class Enclosed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if (x > 1).any():
                x = x * factor
            return x

    return Enclosed()


class Returns(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x


class Numbers(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = 1
        if x.sum() > 0:
            n = 2
        return x * n


class Hidden(nn.Module):
    """A name that is another one outside of the class."""

    __factor = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x * self.__factor
        return x


class Changes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0
        if x.sum() > 0:
            x = x.mul_(2)
        return x


class Activated(nn.Module):
    """A function of torch.nn in place, inside another function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0
        if x.sum() > 0:
            y = self.activated(x)
        else:
            y = x
        return y

    def activated(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(x, True)


class Indexed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0
        if x.sum() > 0:
            y = self.first(x)
        else:
            y = x
        return y

    def first(self, x: torch.Tensor) -> torch.Tensor:
        x[0] = 3
        return x


class Out(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0
        if x.sum() > 0:
            y = torch.add(x, 1, out=x)
        else:
            y = x
        return y


class Late(nn.Module):
    """What is changed in place behind the `if` may be another tensor."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x + 0
        if x.sum() > 0:
            y = x
        else:
            y = x.cumsum(0)
        y += 1
        return x, y


class Attribute(nn.Module):
    """A module's attribute that is assigned within a side, and read behind it."""

    used = 0

    def large(self, x: torch.Tensor) -> torch.Tensor:
        self.used = 1
        return x.cumsum(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.used = 0
        if x.sum() > 0:
            x = self.large(x)
        return x * 2 if self.used else x


class Listed(nn.Module):
    """A list that is appended to within a side."""

    def step(self, x: torch.Tensor, found: list[torch.Tensor]) -> torch.Tensor:
        found.append(x.softmax(-1))
        return x + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: list[torch.Tensor] = []
        if x.sum() > 0:
            x = self.step(x, found)
        return x + sum(found)


class Generator(nn.Module):
    """A question within a side that cannot be converted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            y = x.softmax(-1)
            if any(row.sum() > 4 for row in x):
                y = y.cumsum(0)
        else:
            y = x
        return y * 2


class Given(nn.Module):
    """An argument that is changed in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x.mul_(2)
            return x.softmax(-1)
        x[0] = 7
        return x.cumsum(0)


class Closure(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def inner(y: torch.Tensor) -> torch.Tensor:
            if y.sum() > 0:
                return y.softmax(-1)
            return y.cumsum(0)

        return (lambda y: y.exp() if y.sum() > 2 else y.sin())(inner(x))


class Found:
    """A result of a plain class."""

    def __init__(self, x: torch.Tensor, steps: int) -> None:
        self.x, self.steps = x, steps


class Object(nn.Module):
    def forward(self, x: torch.Tensor) -> Found:
        for _ in range(2):
            x = x.cumsum(0) - 1
            if x.sum() > 0:
                return Found(x, 3)
        return Found(x.softmax(-1), 3)


class Containers(nn.Module):
    """Tuples and dicts of tensors, one of them of one side alone."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        state = (x, x * 2)
        if x.sum() > 0:
            state, more = (state[1].cumsum(0), state[0]), {"k": x.softmax(-1)}
        else:
            more = {"k": x}
        if x.amax() > 100:
            rest = [x.cumsum(1)]
            state = (rest[0], *state[1:])
        return *state, more["k"]


class Modes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            if x.sum() > 0:
                with torch.enable_grad():
                    x = x.cumsum(0)
            else:
                x = x.softmax(-1)
        return x


class Cond(nn.Module):
    """`torch.cond` in a branch, and in the common part of paths."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = torch.cond(x.amax() > 2, lambda x: x.cumsum(0), lambda x: x.softmax(-1), (x,))
            if x.mean() > 0.2:
                return x
        return x.sin()


class Division(nn.Module):
    """An integer by zero, were both sides computed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = (x > 3).sum()
        return 100 // n if n > 0 else n


MODELS: dict[str, Callable[[], nn.Module]] = {
    "clamped": Clamped,
    "both": Both,
    "nested": Nested,
    "scaled": Scaled,
    "written": Written,
    "enclosed": lambda: enclosed(4.0),
    "returns": Returns,
    "numbers": Numbers,
    "hidden": Hidden,
    "changes": Changes,
    "activated": Activated,
    "indexed": Indexed,
    "out": Out,
    "late": Late,
    "attribute": Attribute,
    "listed": Listed,
    "generator": Generator,
    "given": Given,
    "closure": Closure,
    "object": Object,
    "containers": Containers,
    "modes": Modes,
    "cond": Cond,
    "division": Division,
}


def inputs() -> list[torch.Tensor]:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    broken = x.clone()
    broken[1, 2] = torch.inf
    return [x, -x.abs(), x.abs() + 4, broken]


def leaves(found: object) -> list[object]:
    return [vars(found)[n] for n in ("x", "steps")] if isinstance(found, Found) else [found]


@pytest.mark.parametrize("name", MODELS)
def test_both_ways(name: str) -> None:
    model = MODELS[name]().eval()
    before = type(model).forward.__code__
    fast = monotile.compile(model, (inputs()[0],), target="cpu")
    assert type(model).forward.__code__ is before
    assert fast.kernels == 1
    for x in inputs():
        ours, theirs = x.clone(), x.clone()
        torch.testing.assert_close(leaves(fast(ours)), leaves(model(theirs)), equal_nan=True)
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_a_line_is_still_the_users() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if (x > 0).all():
                x = x + 1
            return x.sin()

    found = export(Model(), (torch.ones(3),))
    (node,) = [n for n in found.graph.nodes if "sin" in str(n.target)]
    line = inspect.getsourcelines(Model.forward)[1] + 3
    assert f'test_branches.py", line {line}' in node.meta["stack_trace"]


def test_a_few_element_wise_operators_are_no_branch() -> None:
    """They are computed on both sides: nothing has to wait for the test."""
    for model, expected in ((Clamped(), 0), (Returns(), 0), (Containers(), 2)):
        body = capture(model, (torch.ones(4, 3),)).program.body
        assert sum(isinstance(s, Branch) for s in body) == expected


def test_tensors_that_may_be_equal() -> None:
    class Kernel(nn.Module):
        """As GPyTorch looks whether it compares points with themselves."""

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            found = (x[:, None] - y[None]).square().sum(-1)
            if torch.equal(x, y):
                found = found.fill_diagonal_(0) + 1
            if not x.equal(x) or torch.equal(x, y[:2]):
                found = found * 2
            return found

    x = torch.randn(3, 4)
    check(Kernel(), (x, torch.randn(3, 4)))
    check(Kernel(), (x, x.clone()))
