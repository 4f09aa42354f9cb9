"""Updates in place that are seen through what may be a view or a copy."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from monotile.errors import CaptureError
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.frontends.torch.rewriting.sharing import shared_as_run
from tests.frontend.against import Operators, check_operators


def both(x: torch.Tensor, view: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`x` and what may be a view of it, after an update of each."""
    y = view(x)
    y += 1
    x[0] *= 3
    return x, y * 2


def normalised(x: torch.Tensor) -> torch.Tensor:
    """Strided where the tracer is asked, contiguous in PyTorch."""
    x = x.transpose(0, 2)
    return F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1]))


def dropped(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.5, training=False)


def test_what_an_update_reaches_is_what_it_reaches_in_pytorch() -> None:
    last = torch.channels_last
    check_operators(
        {
            "a view": lambda x: both(x.exp(), lambda x: x.reshape(-1)),
            "a copy": lambda x: both(x.exp().transpose(0, 1), lambda x: x.reshape(-1)),
            "strides the tracer mistakes": lambda x: both(normalised(x), lambda x: x.reshape(-1)),
            "and what follows them": lambda x: both(normalised(x).exp(), lambda x: x.flatten(1)),
            "one of several": lambda x: both(
                normalised(x).topk(2, 2).values.abs(), torch.Tensor.contiguous
            ),
            "channels last": lambda x: both(
                F.max_pool2d(x.to(memory_format=last), 2),
                lambda x: x.permute(0, 2, 3, 1).reshape(-1),
            ),
            "dropout": lambda x: both(x.exp(), dropped),
            "dropouts": lambda x: both(x.exp(), lambda x: dropped(dropped(x)).reshape(-1)),
            "an index": lambda x: both(x[torch.tensor([1, 0])], lambda x: x.contiguous()),
        },
        torch.randn(2, 3, 4, 5),
    )


def test_an_argument_is_changed_through_its_dropout() -> None:
    def f(x: torch.Tensor) -> Any:
        dropped(x).add_(1)
        return x * 2

    captured = capture(Operators({"f": f}), (torch.randn(3),))
    assert len(captured.program.states) == 1


@pytest.mark.parametrize(
    "give", [lambda x: torch.einsum("ij->ji", x), lambda x: x.unsafe_chunk(2)[0]]
)
def test_views_that_the_tracer_takes_for_copies_are_refused(give: Callable[..., Any]) -> None:
    x = torch.randn(4, 6)
    capture(Operators({"f": lambda x: give(x.exp())}), (x,))
    with pytest.raises(CaptureError, match=r"returns a view.*call \.clone\(\)"):
        capture(Operators({"f": lambda x: both(x.exp(), give)}), (x,))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(F.relu(self.norm(self.conv(x)), inplace=True), training=False)
        y += x
        return F.relu(y, inplace=True).flatten(1)


def test_ordinary_updates_cost_nothing() -> None:
    model = nn.Sequential(Block(), nn.Unflatten(1, (3, 64)), nn.Unflatten(2, (8, 8)), Block())
    exported = export(model.eval(), (torch.randn(2, 3, 8, 8),))
    assert shared_as_run(exported) is exported


def test_an_update_of_windows_keeps_what_lies_between_them_or_is_refused() -> None:
    def f(x: torch.Tensor, size: int, step: int) -> torch.Tensor:
        x = x.exp()
        x.unfold(1, size, step).mul_(2)
        return x

    x = torch.randn(3, 12)
    check_operators({"whole": lambda x: f(x, 3, 3)}, x)
    for size, step in ((2, 3), (5, 5)):
        with pytest.raises(CaptureError, match=r"windows.*update slices"):
            capture(Operators({"f": lambda x, size=size, step=step: f(x, size, step)}), (x,))
