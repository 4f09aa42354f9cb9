"""Weights of two of each four: sparse tensor cores take them as they are, as long as their places ascend."""

import pytest
import torch
from torch import Tensor, nn

import monotile
from monotile.analysis.pruning.specialised import Specialised
from monotile.config import Options
from monotile.errors import InputError
from monotile.kernels.matmul.method import Matmul
from monotile.plan.walk import stages_in
from monotile.runtime.parameter_values import Watch, ascends

UNCACHED = Options(cache=False)


class Own(nn.Module):
    """A layer that decodes such a weight by its own code: the two values by what is left of a remainder."""

    def __init__(self, n: int, k: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        pairs = torch.tensor([[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]])
        at = pairs[torch.randint(6, (n, k // 4))].flatten(1).unflatten(1, (-1, 4))
        self.at = nn.Buffer((at * torch.tensor([1, 4, 16, 64])).sum(-1).to(torch.uint8))
        self.values = nn.Buffer(torch.randn(n, k // 2, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        at = torch.stack([self.at % 4, self.at // 4 % 4, self.at // 16 % 4, self.at // 64], -1)
        at = at.flatten(1).unflatten(1, (-1, 2))
        here = at.unsqueeze(-1) == torch.arange(4, dtype=torch.uint8)
        weight = torch.where(here, self.values.unflatten(1, (-1, 2)).unsqueeze(-1), 0).sum(-2)
        return x @ weight.flatten(1).T


def methods(model: nn.Module, rows: int, k: int, target: str) -> list[bool]:
    x = torch.randn(rows, k, dtype=torch.float16)
    fast = monotile.compile(model.eval(), (x,), target=target, options=UNCACHED)
    steps = [s.method for stage in stages_in(fast.plan.body) for s in stage.steps]
    return [isinstance(m, Matmul) and m.sparse for m in steps]


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_taken_as_they_are(rows: int) -> None:
    packed = monotile.pack(nn.Sequential(nn.Linear(512, 512)).half(), "2:4")
    assert any(methods(packed, rows, 512, "cuda:sm_90a"))
    assert any(methods(Own(4096, 4096), rows, 4096, "cuda:sm_90a"))


def test_not_by_other_gpus() -> None:
    assert not any(methods(Own(512, 512), 64, 512, "cuda:sm_80"))


def test_not_with_places_that_do_not_ascend() -> None:
    model = Own(512, 512)
    model.at[0, 0] = 0b11110001
    assert not any(methods(model, 64, 512, "cuda:sm_90a"))


def test_a_change_is_noticed() -> None:
    at = Own(8, 32).at
    watch = Watch.of(Specialised(ascending=("at",)), {"at": at}, frozenset())
    assert watch is not None
    assert not watch.changed()
    at[0, 0] = 0b00010100  # 0, 1, 1, 0
    assert watch.changed()
    with pytest.raises(InputError, match=r"at no longer has two places .* that ascend"):
        watch.refresh({"at": at})


@pytest.mark.parametrize(
    ("byte", "whether"),
    [(0b01000100, True), (0b11101110, True), (0b01000000, False), (0b00010100, False)],
)
def test_pairs(byte: int, whether: bool) -> None:
    assert ascends(torch.tensor([[0b01000100, byte]], dtype=torch.uint8)) == whether
