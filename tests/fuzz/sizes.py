"""Random networks over a dimension whose size the call decides, compared with eager PyTorch at sizes of the range.

    python -m tests.fuzz.sizes --count 2000 --seed 0 [--target program|cpu|emulator] [--only SEED]

A network is a chain of operators, some of which keep what they were given beside their result. "program" evaluates the Program as all passes
for a GPU leave it, its undefined elements as NaN; the others run the kernel.
"""

import argparse
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from monotile.config import Options
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Program
from monotile.ir.verify import verify
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify as verify_plan
from monotile.targets.cuda.emit import settle
from monotile.targets.cuda.target import cuda_target
from tests.codegen.cpu_run import TARGET as CPU
from tests.codegen.cpu_run import Compiled
from tests.codegen.emulate import emulate
from tests.frontend.sized import Sized, same

WIDTH, MOST = 8, 24
CUDA, OPTIONS = cuda_target("sm_90a"), Options(workers=3)
Tensor = torch.Tensor
Step = Callable[[Tensor, Any], Tensor]

# Of x: [batch, length, WIDTH], and a layer's weight [WIDTH, WIDTH].
STEPS: dict[str, Step] = {
    "linear": lambda x, w: F.linear(x, w),
    "rows": lambda x, w: (x.reshape(-1, WIDTH) @ w).view(x.shape),
    "relu": lambda x, w: x.relu() - 0.1 * x,
    "scaled": lambda x, w: x * (1 + 1 / x.shape[1]),
    "layer_norm": lambda x, w: F.layer_norm(x, (WIDTH,), w[0]),
    "group_norm": lambda x, w: F.group_norm(x.transpose(1, 2), 2).transpose(1, 2),
    "softmax": lambda x, w: x.softmax(1) * x.shape[1],
    "softmax_last": lambda x, w: x.softmax(-1) + x,
    "centred": lambda x, w: x - x.mean(1, keepdim=True),
    "largest": lambda x, w: x / (1 + x.abs().amax((0, 1), keepdim=True)),
    "spread": lambda x, w: x / (0.5 + x.std(1, keepdim=True, correction=0)),
    "attention": lambda x, w: x + F.scaled_dot_product_attention(*(x.unflatten(2, (2, -1)).transpose(1, 2),) * 3).transpose(1, 2).flatten(2),
    "causal": lambda x, w: F.scaled_dot_product_attention(x, F.linear(x, w), x, is_causal=True),
    "mixed": lambda x, w: ((x @ x.transpose(1, 2)) / 8).tanh() @ x / x.shape[1],
    "squeezed": lambda x, w: x * torch.sigmoid(x.mean(1) @ w)[:, None],
    "flipped": lambda x, w: x.flip(1),
    "rolled": lambda x, w: x.roll(1, 1),
    "shifted": lambda x, w: torch.cat([x[:, -1:], x[:, :-1]], 1),
    "differences": lambda x, w: x - F.pad(x, (0, 0, 1, 0))[:, :-1],
    "summed": lambda x, w: x.cumsum(1) / x.shape[1],
    "convolved": lambda x, w: F.conv1d(x.transpose(1, 2), w[:, :, None].expand(-1, -1, 3) / 3, padding=1).transpose(1, 2),
    "depthwise": lambda x, w: F.conv1d(x.transpose(1, 2), w[:, None, :3], padding=2, dilation=2, groups=WIDTH).transpose(1, 2),
    "pooled": lambda x, w: F.avg_pool1d(x.transpose(1, 2), 3, 1, 1).transpose(1, 2),
    "positions": lambda x, w: x + torch.arange(x.shape[1])[:, None] / x.shape[1],
    "chosen": lambda x, w: torch.where(torch.arange(x.shape[1])[:, None] % 2 == 0, x, -x),
    "first": lambda x, w: x - x[:, :1],
    "last": lambda x, w: x + x[:, -1:] * w[0],
    "sorted": lambda x, w: x.sort(1).values,
    "rotated": lambda x, w: torch.cat([-x[..., WIDTH // 2 :], x[..., : WIDTH // 2]], -1),
    "split": lambda x, w: torch.cat([a * b for a, b in zip(x.chunk(2, -1), x.chunk(2, -1)[::-1], strict=True)], -1),
    "triangle": lambda x, w: x.new_ones(x.shape[1], x.shape[1]).tril() @ x / x.shape[1],
}  # fmt: skip
ENDS: dict[str, Callable[[Tensor], Any]] = {
    "whole": lambda x: x,
    "mean": lambda x: x.mean(1),
    "last": lambda x: x[:, -1],
    "flat": lambda x: x.flatten(1),
    "several": lambda x: (x.sum((0, 1)), x.amax(1), x.shape[1]),
    "longer": lambda x: torch.cat([x, x[:, :2]], 1),
    "transposed": lambda x: x.transpose(1, 2),
}


class Network(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        r = Random(seed)
        self.steps = [r.choice(list(STEPS)) for _ in range(r.randint(1, 6))]
        self.repeats = r.choice((1, 1, 1, 3))
        self.residual = r.random() < 0.3
        self.end = r.choice(list(ENDS))
        torch.manual_seed(seed)
        count = len(self.steps) * self.repeats
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) / 3 for _ in range(count))
        self.both = r.random() < 0.4  # whether the batch is open too

    def forward(self, x: Tensor) -> Any:
        for k, w in enumerate(self.weights):
            y = STEPS[self.steps[k % len(self.steps)]](x, w)
            x = x + 0.5 * y if self.residual else y
        return ENDS[self.end](x)


def run(seed: int, target: str) -> None:
    """Raises what is wrong."""
    r = Random(seed + 1)
    model = Network(seed).eval().requires_grad_(False)
    low, high = r.choice(((3, MOST), (4, 9), (3, 17)))
    shapes = {1: Dim("length", min=low, max=high)} | ({0: Dim("batch", min=1, max=4)} if model.both else {})  # fmt: skip

    def given() -> Tensor:
        return torch.randn(r.randint(1, 4) if model.both else 2, r.randint(low, high), WIDTH)

    sized = Sized(model, (torch.randn(2, (low + high) // 2, WIDTH),), (shapes,))
    call = kernel(sized, target)
    for _ in range(4):
        x = given()
        with torch.no_grad():
            wanted, exact = model(x), model.double()(x.double())
        model.float()
        off = max((a - b).abs().max().item() for a, b in zip(_tensors(wanted), _tensors(exact), strict=True))  # fmt: skip
        same(call(x), wanted, 2e-5 + 20 * off)


def _tensors(x: Any) -> list[Tensor]:
    return [t for t in (x if isinstance(x, tuple) else (x,)) if isinstance(t, Tensor)]


def kernel(sized: Sized, target: str) -> Callable[[Tensor], list[Any]]:
    """From an argument to results."""
    on = CPU if target == "cpu" else CUDA
    program, constants = transform(sized.captured.program, sized.captured.constants, OPTIONS)
    program, context = for_target(program, on)
    verify(program)
    run = _run(program, context, target)
    return lambda x: sized.results(run(sized.values(program, (x,), constants)), (x,))


def _run(program: Program, context: Any, target: str) -> Callable[[Any], Any]:
    if target == "cpu":
        return Compiled(program)
    if target == "emulator":
        plan = schedule(program, CUDA, OPTIONS, context)
        plan, source = settle(program, plan, CUDA, OPTIONS)
        verify_plan(plan, program, CUDA)
        return lambda values: emulate(program, plan, source, values)

    def evaluated(values: Any) -> Any:
        with np.errstate(all="ignore"):
            return evaluate(program, values)

    return evaluated


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=("program", "cpu", "emulator"), default="program")
    parser.add_argument("--only", type=int, action="append")
    chosen = parser.parse_args()
    failed = 0
    seeds = chosen.only or range(chosen.seed, chosen.seed + chosen.count)
    for seed in seeds:
        try:
            run(seed, chosen.target)
        except Exception as e:
            failed += 1
            model = Network(seed)
            what = f"{model.steps} x {model.repeats}, {model.end}"
            print(f"seed {seed}: {what}: {type(e).__name__}: {str(e)[:400]}", flush=True)  # noqa: T201
    print(f"{len(seeds) - failed} of {len(seeds)} equal")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
