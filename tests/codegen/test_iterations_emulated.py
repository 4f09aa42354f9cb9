"""Maps with many vectors per thread, several iterations in flight, on the emulator."""

import pytest
import torch
from torch import Tensor, nn

from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


class Mapped(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.nn.functional.silu(x) + y, torch.sigmoid(x[:, :3])


@pytest.mark.parametrize(
    ("rows", "long"), [(101, False), (3001, True)], ids=["in a few rounds", "in many"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_last_turns_may_have_no_vector(rows: int, long: bool, dtype: torch.dtype) -> None:
    x, y = torch.randn(rows, 36).to(dtype), torch.randn(rows, 36).to(dtype)
    fast = Emulated(Mapped(), (x, y), workers=2)
    assert ("later_" in fast.source.text) is long
    for seed in range(2):
        found, right = fast(x, y, seed=seed), Mapped()(x, y)
        for a, b in zip(found, right, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)


class Turned(nn.Module):
    """A signal beside its mean, which a convolution reads as rows of channels: a copy that is turned on chip."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3072, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(torch.cat([x, x.mean(2, keepdim=True).expand_as(x)], 1))


def test_neighbouring_threads_store_neighbours_where_the_last_task_has_less() -> None:
    """Walking block by block is for what data says is live."""
    model = Turned().half().eval().requires_grad_(False)
    fast = Emulated(model, (torch.randn(8, 1536, 300).half(),), workers=132)
    assert "cat_rows" in fast.source.text
    assert "_block = 0" not in fast.source.text
