"""Streamed weights whose rows are where other results say, as those of experts, on the emulator against PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor, nn

import monotile
from monotile.kernels.gemv.method import GemvColumns, GemvMma
from monotile.plan.walk import stages_in
from monotile.targets.model import Streaming
from tests.codegen.emulate import COMPILER, EmulationError
from tests.codegen.emulate_model import Emulated
from tests.codegen.test_gemv_emulated import SMALL, check
from tests.conftest import wide
from tests.packing.test_stacks import model

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")

EXPERTS = 6
# Whose copies take no time, as if rows were long.
FREE = replace(
    SMALL,
    model=replace(
        SMALL.model, streaming=Streaming(gather=0.0, bulk=0.0, slot=0.0, run=0.0, pair=0.0)
    ),
)


class Experts(nn.Module):
    """The `top` best of six experts of a row, each of two products. across: their weights are [in, out] in memory, else [out, in]."""

    def __init__(self, width: int, inner: int, top: int, *, across: bool) -> None:
        super().__init__()
        self.top, self.across = top, across
        self.router = nn.Linear(width, EXPERTS)
        up, down = (EXPERTS, width, inner), (EXPERTS, inner, width)
        if not across:
            up, down = up[:1] + up[:0:-1], down[:1] + down[:0:-1]
        self.up, self.down = (
            nn.Parameter(torch.randn(s) / (s[1] if across else s[2]) ** 0.5) for s in (up, down)
        )

    def forward(self, x: Tensor) -> Tensor:
        shares, chosen = self.router(x)[0].softmax(-1).topk(self.top)
        up, down = self.up[chosen], self.down[chosen]
        if not self.across:
            up, down = up.mT, down.mT
        h = F.silu(torch.matmul(x, up))
        return x + (torch.matmul(h, down)[:, 0] * shares[:, None]).sum(0)


def methods(fast: Emulated) -> list[type]:
    return [type(s.method) for stage in stages_in(fast.plan.body) for s in stage.steps]


@pytest.mark.parametrize(
    ("width", "inner", "top", "dtype"),
    [
        (96, 200, 2, torch.bfloat16),
        wide(96, 264, 3, torch.float32),
        wide(128, 520, 1, torch.float16),
    ],
)
@pytest.mark.parametrize("layers", [1, wide(3)])
def test_experts_across(width: int, inner: int, top: int, dtype: torch.dtype, layers: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Experts(width, inner, top, across=True) for _ in range(layers)))
    fast = check(model.to(dtype).eval(), torch.randn(1, width).to(dtype), 5, FREE)
    assert GemvColumns in methods(fast)
    assert "ring.hear()" in fast.source.text


def test_whole_rows_do_not_stream() -> None:
    torch.manual_seed(3)
    model = Experts(128, 264, 2, across=False).half().eval()
    fast = check(model, torch.randn(1, 128).half(), 5, FREE)
    assert "ring.hear()" not in fast.source.text


def test_parts_of_the_sum() -> None:
    """Tasks that add a part of the rows each have wider parts of them, which are copied in fewer pieces."""
    torch.manual_seed(4)
    model = Experts(1024, 1032, 2, across=True).bfloat16().eval()
    fast = check(model, torch.randn(1, 1024).bfloat16(), 16, replace(SMALL, workers=16))
    parts = [s for s in stages_in(fast.plan.body) if s.name.endswith("_parts")]
    assert any(type(s.steps[0].method) is GemvColumns for s in parts)


class Logits(nn.Module):
    """One token of a language model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.model(ids, use_cache=False).logits
        return found


@pytest.mark.parametrize("format", ["int4", wide("int8"), wide("nf4"), "mxfp4", wide("fp8")])
@pytest.mark.parametrize("name", ["olmoe", "gpt_oss"])
def test_codes(format: str, name: str) -> None:
    """Codes are in whole rows, however the weights were, and stream; those of the second product beside a vector for each expert."""
    group = "default" if format in ("nf4", "mxfp4") else 32
    packed = monotile.pack(model(name).bfloat16(), format, group)
    ids, whole = torch.tensor([[5]]), Logits(packed)
    fast = Emulated(whole, (ids,), 5, target=FREE)
    assert "ring.hear()" in fast.source.text
    assert GemvMma in methods(fast)
    for seed in (1, 2):
        (got,) = fast(ids, seed=seed)
        torch.testing.assert_close(got, whole(ids), rtol=0.05, atol=0.03)


class Given(nn.Module):
    """Rows of matrices that an argument chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, 64, 264) / 8)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        return torch.matmul(x, self.weight[chosen])


def test_an_index_out_of_range_fails() -> None:
    torch.manual_seed(1)
    model, x = Given().half().requires_grad_(False), torch.randn(1, 64).half()
    fast = Emulated(model, (x, torch.tensor([3, 0, 3])), 4, target=SMALL)
    assert GemvColumns in methods(fast)
    for chosen in ([5, 1, 1], [2, 3, -6]):
        (got,) = fast(x, torch.tensor(chosen))
        torch.testing.assert_close(got, model(x, torch.tensor(chosen)), rtol=4e-3, atol=4e-3)
    with pytest.raises(EmulationError, match="failure"):
        fast(x, torch.tensor([0, EXPERTS, 1]))


@pytest.mark.parametrize(("columns", "workers"), [(2200, 7), wide(520, 5)])
def test_matrices_side_by_side_of_bulk_copies(columns: int, workers: int) -> None:
    """A task's columns are of one matrix where each row is one copy."""

    class Side(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 48, columns) / 7)

        def forward(self, x: Tensor) -> Tensor:
            return torch.matmul(x, self.weight)

    torch.manual_seed(2)
    fast = check(Side().half(), torch.randn(1, 48).half(), workers=workers)
    assert GemvColumns in methods(fast)
