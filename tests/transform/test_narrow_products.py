"""Products of 8-bit integers as floats: exact for all values, in parts that float32 can sum."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import monotile
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Compute, statements
from monotile.kernels.matmul.method import Matmul
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.walk import stages_in
from monotile.targets.cpu.target import cpu_target


class Product(nn.Module):
    def __init__(
        self, k: int, n: int, dtype: torch.dtype = torch.int8, value: int | None = None
    ) -> None:
        super().__init__()
        self.w = nn.Buffer(integers((n, k), dtype, value))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.int32)[:, None] * self.w.to(torch.int32)).sum(-1, dtype=torch.int32)


def integers(shape: tuple[int, ...], dtype: torch.dtype, value: int | None = None) -> Tensor:
    """Random ones of all values, or one value everywhere."""
    info = torch.iinfo(dtype)
    if value is not None:
        return torch.full(shape, value, dtype=dtype)
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(info.min, info.max + 1, shape, dtype=dtype, generator=generator)


CASES = {
    "one part": (256, torch.int8, torch.int8, None),
    "all that a part takes": (1024, torch.int8, torch.int8, -128),
    "two parts": (2048, torch.int8, torch.int8, -128),
    "many parts": (64 * 300, torch.int8, torch.int8, None),
    "unsigned": (1024, torch.uint8, torch.uint8, 255),
    "mixed": (1536, torch.uint8, torch.int8, None),
    "a prime": (1009, torch.int8, torch.int8, None),
    "a larger prime": (2003, torch.int8, torch.int8, None),
}


@pytest.mark.parametrize("name", CASES)
def test_exact(name: str) -> None:
    k, left, right, value = CASES[name]
    model, x = Product(k, 24, right, value), integers((16, k), left, value)
    wanted = model(x)
    found = capture(model.eval(), (x,))
    program, constants = transform(found.program, found.constants, Options())
    program, _ = for_target(program, cpu_target(workers=2))
    sums = [s for s in statements(program.body) if isinstance(s, Compute) and s.reduce]
    assert (sums[0].body.dtype is DType.F32) == (name != "a larger prime")
    values = {n: p.numpy() for n, p in found.parameters.items()} | dict(constants)
    (result,) = evaluate(program, values | {program.inputs[0].name: x.numpy()})
    np.testing.assert_array_equal(result, wanted.numpy())
    fast = monotile.compile(model, (x,), target="cpu")
    assert torch.equal(fast(x), wanted)


@pytest.mark.parametrize("name", ["one part", "unsigned", "mixed", "a prime"])
def test_a_cpu_sums_products_of_bytes(name: str) -> None:
    k, left, right, _ = CASES[name]
    model, x = Product(k, 37, right), integers((19, k), left)
    found = capture(model.eval(), (x,))
    program, _ = transform(found.program, found.constants, Options())
    target = cpu_target(workers=2, instructions=frozenset({"vnni"}))
    program, context = for_target(program, target)
    plan = schedule(program, target, Options(), context)
    verify(plan, program, target)
    (step,) = (s for stage in stages_in(plan.body) for s in stage.steps)
    assert isinstance(step.method, Matmul)
    assert step.method.instruction == "dot"
    fast = monotile.compile(model, (x,), target="cpu", options=Options(cache=False))
    assert torch.equal(fast(x), model(x))


@pytest.mark.parametrize("rows", [1, 8, 128])
def test_tensor_cores_take_many_rows(rows: int) -> None:
    model, x = Product(1024, 1024), integers((rows, 1024), torch.int8)
    options = Options(cache=False)
    plan = monotile.compile(model, (x,), target="cuda:sm_90a", options=options).plan
    methods = [s.method for stage in stages_in(plan.body) for s in stage.steps]
    found = [m for m in methods if isinstance(m, Matmul)]
    assert bool(found) == (rows > 8)
    assert all(m.instruction in ("wgmma", "mma") for m in found)
