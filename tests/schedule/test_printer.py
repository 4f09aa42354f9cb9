"""The text of a Plan: one of every node."""

from collections.abc import Callable

from monotile.kernels.common.operand import Operand
from monotile.kernels.elementwise.method import Map
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.reduction.method import Reduce
from monotile.kernels.scatter.method import Serial
from monotile.plan.launch import Launch
from monotile.plan.nodes import Dim, Plan, Repeat, Resident, Stage, Step
from monotile.plan.places import BoxDim, Pointer, Register, Rotate, Shared, Slice, Workspace
from monotile.plan.printer import show


def example() -> Plan:
    rows, columns = Dim((0,), 128, 64, 0), Dim((1, 2), 768, 24, 1)
    left, right = Operand("k", 8, "async"), Operand("none", 1, "element")
    product = Matmul(0, 1, (0,), 64, 24, 64, "mma", left, right, warps_m=2, slices=4, depth=3)
    steps = (
        Step(("product", "y"), (rows, columns), product),
        Step(("total",), (rows,), Reduce(32, 8, (0,)), barrier=True),
        Step(("scaled",), (Dim((0,), 128, 64, 0), Dim((1,), 4, 4, None)), Map(4)),
    )
    first = Stage("stage_scaled", (2, 32), steps, "grid", 3)
    last = Stage("stage_z", (), (Step(("z",), (), Serial()),), "block", 0)
    return Plan(
        target="cuda:sm_90a",
        launch=Launch(132, 256, 1024, 4096),
        inputs=("x",),
        outputs=("z",),
        weights=(),
        places={
            "x": (Pointer(0),),
            "y": (
                Shared(256, (BoxDim(0, 64, 64), BoxDim(None, 24, 24)), 24),
                Rotate("l", 12, 1, (Workspace(0), Workspace(512)), last=Pointer(1)),
            ),
            "history": (Slice(Workspace(1024), "l", 256),),
            "product": (Register(),),
        },
        body=(Repeat("l", 12, (first,), (Resident("stage_scaled", "total", 1, 512, 256),)), last),
    )


def test_plan(golden: Callable[[str, str], None]) -> None:
    golden("plan.txt", show(example()))
