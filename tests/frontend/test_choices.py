"""Python's choices by tensors' values, as selections."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn

import monotile
from monotile.errors import CaptureError
from monotile.frontends.torch.capture import export

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


MODELS: dict[str, Callable[[], nn.Module]] = {
    "clamped": Clamped,
    "both": Both,
    "nested": Nested,
    "scaled": Scaled,
    "written": Written,
    "enclosed": lambda: enclosed(4.0),
}


def inputs() -> list[torch.Tensor]:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    broken = x.clone()
    broken[1, 2] = torch.inf
    return [x, -x.abs(), x.abs() + 4, broken]


@pytest.mark.parametrize("name", MODELS)
def test_both_ways(name: str) -> None:
    model = MODELS[name]().eval()
    before = type(model).forward.__code__
    fast = monotile.compile(model, (inputs()[0],), target="cpu")
    assert type(model).forward.__code__ is before
    assert fast.kernels == 1
    for x in inputs():
        torch.testing.assert_close(fast(x), model(x), equal_nan=True)


def test_a_line_is_still_the_users() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if (x > 0).all():
                x = x + 1
            return x.sin()

    found = export(Model(), (torch.ones(3),))
    (node,) = [n for n in found.graph.nodes if "sin" in str(n.target)]
    line = inspect.getsourcelines(Model.forward)[1] + 3
    assert f'test_choices.py", line {line}' in node.meta["stack_trace"]


class Returns(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x


class Shapes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x[:2]
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


class Counted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global FACTOR  # noqa: PLW0603
        if x.sum() > 0:
            FACTOR = 3
        return x * FACTOR


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


@pytest.mark.parametrize(
    ("model", "where", "by"),
    [
        (Changes, "forward", "mul_"),
        (Activated, "activated", "relu"),
        (Indexed, "first", "__setitem__"),
        (Out, "forward", "add"),
    ],
)
def test_a_way_that_changes_a_tensor_is_an_error(
    model: type[nn.Module], where: str, by: str
) -> None:
    """It would be changed whichever way is chosen."""
    with pytest.raises(CaptureError, match=rf"test_choices.py:\d+, in {where}.*in place, by {by}"):
        export(model(), (torch.ones(4, 3),))


@pytest.mark.parametrize("model", [Returns, Shapes, Numbers, Hidden, Counted])
def test_what_is_no_selection_is_an_error(
    model: type[nn.Module], capfd: pytest.CaptureFixture[str]
) -> None:
    before = model.forward.__code__
    with pytest.raises(CaptureError, match=r"test_choices.py:\d+, in forward.*torch.where"):
        export(model(), (torch.ones(4, 3),))
    assert model.forward.__code__ is before
    assert not capfd.readouterr().err
