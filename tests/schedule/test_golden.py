"""Two small Programs all the way: their Plans, C and CUDA sources stay what they are until someone means to change them."""

from collections.abc import Callable
from itertools import product

from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.plan.check.structure import verify
from monotile.targets.cpu import emit as cpu
from monotile.targets.cuda import emit as cuda
from tests.schedule import programs as p

PROGRAMS = {"mlp": p.mlp(64, 256, DType.F16), "recurrence": p.recurrence()}
EMITTERS = {"cpu": (p.CPU, cpu.emit, "c"), "cuda": (p.H100, cuda.emit, "cu")}


def test_plans_and_sources(golden: Callable[[str, str], None]) -> None:
    for (name, program), (kind, (target, emit, suffix)) in product(
        PROGRAMS.items(), EMITTERS.items()
    ):
        plan = p.plan_of(program, target)
        verify(plan, program, target)
        golden(f"{name}_{kind}_plan.json", plan.to_json() + "\n")
        golden(f"{name}.{suffix}", emit(program, plan, target, Options()).text)
