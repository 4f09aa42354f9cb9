"""Scores that are too large for the caches are never written to memory."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace

import monotile
from monotile.config import Options
from monotile.errors import VerificationError
from monotile.frontends.torch.capture import capture
from monotile.ir.program import Program
from monotile.kernels.attention.method import Attend
from monotile.kernels.matmul.method import Matmul
from monotile.pipeline import schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan, Stage
from monotile.targets.cuda.target import cuda_target
from monotile.targets.target import Target
from tests.conftest import wide


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_long_sequences_need_no_workspace_for_scores(target: str) -> None:
    q, k, v = (torch.randn(1, 2, 1900, 32) for _ in range(3))
    options = monotile.Options(cache=False)
    fast = monotile.compile(Attention(), (q, k, v), target=target, options=options)
    assert fast.plan.launch.workspace_bytes < 1900 * 1900
    if target == "cpu":
        torch.testing.assert_close(fast(q, k, v), Attention()(q, k, v), rtol=1e-4, atol=1e-5)


def planned(
    model: torch.nn.Module, args: Sequence[torch.Tensor], on: Target
) -> tuple[Program, Plan]:
    captured = capture(model.eval(), args)
    program, _ = transform(captured.program, captured.constants, Options(), lambda *_: None)
    return program, schedule(program, on, Options())


def stage_of(model: torch.nn.Module, *args: torch.Tensor, target: str = "sm_90a") -> Stage:
    """The stage that attention becomes."""
    on = cuda_target(target)
    program, plan = planned(model, args, on)
    verify(plan, program, on)
    stages = [node for node in plan.body if isinstance(node, Stage)]
    (found,) = (x for x in stages if any(isinstance(s.method, Attend) for s in x.steps))
    return found


def attend(heads: int, tokens: int, size: int, target: str = "sm_90a") -> Attend:
    """How the stage that attention in float16 becomes is cut."""
    args = (torch.randn(1, heads, tokens, size).half() for _ in range(3))
    stage = stage_of(Attention(), *args, target=target)
    (found,) = (s.method for s in stage.steps if isinstance(s.method, Attend))
    return found


@pytest.mark.parametrize(
    ("heads", "tokens", "instruction"),
    [
        (12, 128, "mma"),  # blocks of 16 rows: 96 workers instead of 24
        (12, 197, "wgmma"),
        (12, 384, "wgmma"),
        (8, 1500, "wgmma"),
    ],
)
def test_warpgroups_take_over_where_there_is_work_for_them(
    heads: int, tokens: int, instruction: str
) -> None:
    assert attend(heads, tokens, 64).instruction == instruction


def test_attention_waits_for_its_hand_off_when_it_knows_its_addresses() -> None:
    class Projected(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.exp()
            return F.scaled_dot_product_attention(x, x + 1, x * 2)

    stage = stage_of(Projected(), torch.randn(1, 12, 128, 64).half())
    assert isinstance(stage.steps[0].method, Attend)
    assert stage.late


def test_warpgroups_on_targets_that_have_them() -> None:
    assert attend(8, 1500, 128).instruction == "wgmma"
    assert attend(8, 1500, 80).instruction == "wgmma"
    assert attend(8, 1500, 24).instruction == "mma"
    assert attend(8, 1500, 64, "sm_80").instruction == "mma"


@pytest.mark.parametrize("scale", [None, 0.5])
def test_the_scale_is_that_of_the_scores(scale: float | None) -> None:
    class Plain(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, scale=0.25)

    assert attend(8, 128, 64).scale is None  # a mask follows
    on = cuda_target("sm_90a")
    program, plan = planned(Plain(), [torch.randn(1, 8, 128, 64).half()] * 3, on)
    (stage,) = (n for n in plan.body if isinstance(n, Stage))
    (step,) = stage.steps
    assert isinstance(step.method, Attend)
    assert step.method.scale == 0.25
    other = replace(step, method=replace(step.method, scale=scale))
    broken = replace(plan, body=(replace(stage, steps=(other,)),))
    with pytest.raises(VerificationError, match="another softmax-weighted sum"):
        verify(broken, program, on)


def test_a_shared_ring_has_three_stages() -> None:
    """Of two the one that is filled would still be read."""
    on = cuda_target("sm_90a")
    program, plan = planned(Attention(), [torch.randn(1, 8, 1500, 64).half()] * 3, on)
    (stage,) = (n for n in plan.body if isinstance(n, Stage))
    (step,) = stage.steps
    assert isinstance(step.method, Attend)
    assert step.method.slices(on.threads // on.warp) == 1
    verify(plan, program, on)
    shallow = replace(step, method=replace(step.method, depth=2))
    broken = replace(plan, body=(replace(stage, steps=(shallow,)),))
    with pytest.raises(VerificationError, match="three stages"):
        verify(broken, program, on)


class Grouped(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


@pytest.mark.parametrize(
    ("batch", "tokens", "axes", "tile"),
    [
        (1, 128, (2,), 64),  # a block of one head's rows
        (8, 4, (1, 2), 16),  # all rows of the heads that share keys
        (32, 1, (1,), 4),
    ],
)
def test_heads_that_share_keys_are_one_task_where_that_is_faster(
    batch: int, tokens: int, axes: tuple[int, ...], tile: int
) -> None:
    q = torch.randn(batch, 32, tokens, 64).half()
    k, v = (torch.randn(batch, 8, 1024, 64).half() for _ in range(2))
    (step,) = stage_of(Grouped(), q, k, v).steps
    assert isinstance(step.method, Attend)
    rows = step.dims[step.method.m]
    assert (rows.axes, rows.tile) == (axes, tile)


def test_tasks_have_no_rows_of_other_keys() -> None:
    on = cuda_target("sm_90a")
    q = torch.randn(8, 32, 4, 64).half()
    k, v = (torch.randn(8, 8, 1024, 64).half() for _ in range(2))
    program, plan = planned(Grouped(), (q, k, v), on)
    verify(plan, program, on)
    (stage,) = (n for n in plan.body if isinstance(n, Stage))
    (step,) = stage.steps
    for batch, rows, tile, reason in (
        (0, (1, 2), 12, "do not share keys"),
        (0, (1, 2), 32, "do not share keys"),
        (2, (0, 1), 16, "do not all have the same keys"),
    ):
        dims = [
            replace(step.dims[0], axes=(batch,), extent=q.shape[batch]),
            replace(step.dims[1], axes=rows, extent=q.shape[rows[0]] * q.shape[rows[1]], tile=tile),
            step.dims[2],
        ]
        grid = (dims[0].extent, -(-dims[1].extent // tile))
        other = replace(step, dims=tuple(dims))
        broken = replace(plan, body=(replace(stage, grid=grid, steps=(other,)),))
        with pytest.raises(VerificationError, match=reason):
            verify(broken, program, on)


@pytest.mark.parametrize(
    ("heads", "tokens", "streams"), [(12, 128, True), (8, 1500, True), (3, 1000, False)]
)
def test_float32_streams_where_that_is_faster(heads: int, tokens: int, streams: bool) -> None:
    """In three passes: where few tasks do all, or scores are too large for the caches."""
    on = cuda_target("sm_90a")

    class Plain(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v)

    program, plan = planned(Plain(), [torch.empty(1, heads, tokens, 64)] * 3, on)
    verify(plan, program, on)
    methods = [s.method for x in plan.body if isinstance(x, Stage) for s in x.steps]
    assert [m.passes for m in methods if isinstance(m, Attend)] == ([3] if streams else [])


WIDTHS = (8, 40, 64, 96, 128, 136, 256, 264, 512, 520)


@pytest.mark.parametrize(
    ("on", "tokens"),
    [("sm_80", 77), ("sm_90a", 1500), wide("sm_80", 256), wide("sm_80", 1500), wide("sm_90a", 77), wide("sm_90a", 256)],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float16, wide(torch.bfloat16), torch.float32], ids=str)
def test_heads_of_every_width_have_a_plan(on: str, dtype: torch.dtype, tokens: int) -> None:
    """Those too wide to be streamed as well."""

    class Plain(torch.nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, q, q)

    target = cuda_target(on)
    for width in WIDTHS:
        args = [torch.empty(1, 1, tokens, width, dtype=dtype)]
        program, plan = planned(Plain(), args, target)
        verify(plan, program, target)


def test_heads_too_wide_to_stream_have_their_scores_in_memory() -> None:
    on = cuda_target("sm_90a")
    args = [torch.empty(1, 1, 4096, 512, dtype=torch.float16)] * 3
    program, plan = planned(Attention(), args, on)
    verify(plan, program, on)
    stages = [node for node in plan.body if isinstance(node, Stage)]
    products = [s.method for x in stages for s in x.steps if isinstance(s.method, Matmul)]
    assert [m.instruction for m in products] == ["wgmma", "wgmma"]


class Listener(torch.nn.Module):
    """A convolution over time, whose channels are last in memory, and attention beside it, whose heads are parts of the channels."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.stem = torch.nn.Conv1d(80, width, 3, padding=1)
        self.norm = torch.nn.LayerNorm(width)
        self.parts = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))
        self.out = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.stem(x)).transpose(1, 2)
        q, k, v = (p(self.norm(x)).unflatten(-1, (4, -1)).transpose(1, 2) for p in self.parts)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).flatten(2))


def test_layouts_of_a_convolution_leave_attention_whole() -> None:
    args = torch.randn(4, 80, 1500).half()
    fast = monotile.compile(
        Listener().half().eval(), (args,), target="cuda:sm_90a", options=Options(cache=False)
    )
    stages = [node for node in fast.plan.body if isinstance(node, Stage)]
    assert any(isinstance(s.method, Attend) for x in stages for s in x.steps)


def test_what_products_sum_over_stays_last_beside_layouts() -> None:
    """Of a state space in chunks: decays of each head, of which steps are channels of what a convolution over time reads too."""

    class Chunk(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.conv = (
                torch.nn.Linear(64, 72),
                torch.nn.Conv1d(64, 64, 4, groups=64, padding=3),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mixed, steps = self.into(x).split([64, 8], -1)
            mixed = F.silu(self.conv(mixed.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
            total = steps.cumsum(1).transpose(1, 2)
            weights = (total[..., :, None] - total[..., None, :]).exp().tril()
            values = mixed.unflatten(-1, (8, 8)).transpose(1, 2)
            return weights @ values

    x = torch.randn(2, 128, 64).half()
    fast = monotile.compile(
        Chunk().half().eval(), (x,), target="cuda:sm_90a", options=Options(cache=False)
    )
    every = (s.method for n in fast.plan.body if isinstance(n, Stage) for s in n.steps)
    products = [m for m in every if isinstance(m, Matmul)]
    assert products
    assert all(side.vector > 1 for m in products for side in (m.left, m.right))


class Distances(torch.nn.Module):
    """Attention with a bias for pairs of tokens behind the first `n`, which is added to a part of the scores where they are (as in MViT)."""

    def __init__(self, n: int, columns: int, bias: torch.Tensor) -> None:
        super().__init__()
        self.n, self.columns, self.bias = n, columns, torch.nn.Parameter(bias)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q * 0.25) @ k.transpose(-1, -2)
        scores[:, :, self.n :, self.columns :] += self.bias
        return scores.softmax(-1) @ v


@pytest.mark.parametrize(("n", "columns"), [(1, 1), (4, 4), (1, 0)])
def test_sums_with_a_part_of_the_scores_are_biases(n: int, columns: int) -> None:
    q, k, v = (torch.randn(2, 3, 197, 64) for _ in range(3))
    model = Distances(n, columns, torch.randn(3, 197 - n, 197 - columns)).eval()
    stage_of(model.half(), q.half(), k.half(), v.half())
    options = monotile.Options(cache=False)
    fast = monotile.compile(model.float(), (q, k, v), target="cpu", options=options)
    torch.testing.assert_close(fast(q, k, v), model(q, k, v), rtol=1e-4, atol=1e-5)
