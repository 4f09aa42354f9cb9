"""Transposing copies on the emulator: those that go through registers or tiles, and those that cannot."""

from collections.abc import Callable

import numpy as np
import pytest

from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Expr, Load, Tensor, add, idx, mul
from monotile.ir.program import Compute, Program, compute
from monotile.kernels.transpose.match import axes_after_last
from monotile.kernels.transpose.method import Interleave, Transpose, TransposeTiles
from monotile.pipeline import schedule
from monotile.plan.check.structure import verify
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen.emulate import COMPILER, emulate
from tests.codegen.test_cuda_emulated import inputs
from tests.conftest import wide
from tests.schedule.programs import stages

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
TARGET, OPTIONS = cuda_target("sm_90a"), Options(workers=3)
Index = Callable[..., tuple[Expr, ...]]

# What is read: its shape, the result's shape, and where each element of the result is in it.
TURNED: dict[str, tuple[tuple[int, ...], tuple[int, ...], Index]] = {
    "filters": ((6, 16, 3, 3), (6, 3, 3, 16), lambda o, y, x, c: (o, c, y, x)),
    "more than a task": ((300, 16, 5), (300, 5, 16), lambda o, k, c: (o, c, k)),
    "behind in another order": ((4, 8, 2, 3), (3, 4, 2, 8), lambda x, o, y, c: (o, c, y, x)),
    "a part of the rows": ((9, 8, 3), (4, 3, 8), lambda o, k, c: (add(o, idx(2)), c, k)),
}
OTHERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Index]] = {
    "a diagonal over the channels": ((5, 8, 5), (5, 8), lambda k, c: (k, c, k)),
    "a diagonal behind the channels": ((8, 5, 5), (5, 8), lambda k, c: (c, k, k)),
    "channels twice": ((8, 8, 3), (3, 8), lambda k, c: (c, c, k)),
    "a part of what is behind": ((4, 8, 5), (4, 3, 8), lambda o, k, c: (o, c, k)),
    "no whole vectors": ((4, 12, 3), (4, 3, 12), lambda o, k, c: (o, c, k)),
    "too much behind": ((4, 8, 49), (4, 49, 8), lambda o, k, c: (o, c, k)),
}


# Large axes that change places: by way of on-chip memory.
TILES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Index]] = {
    "a matrix": ((128, 192), (192, 128), lambda k, n: (n, k)),
    "the ends of tiles": ((72, 104), (104, 72), lambda k, n: (n, k)),
    "several": ((3, 40, 64), (3, 64, 40), lambda b, k, n: (b, n, k)),
    "heads": ((2, 48, 3, 64), (2, 3, 64, 48), lambda b, h, k, n: (b, n, h, k)),
    "filters of a transposed convolution": (
        (48, 24, 2, 2),
        (24, 2, 2, 48),
        lambda o, y, x, c: (c, o, y, x),
    ),
    "images": ((2, 64, 5, 8), (2, 5, 8, 64), lambda b, y, x, c: (b, c, y, x)),
    "places and rows": ((64, 5, 6, 8), (5, 6, 8, 64), lambda p, y, x, c: (c, p, y, x)),
    "a part of the rows, of the columns all": (
        (96, 64),
        (64, 48),
        lambda k, n: (add(n, idx(8)), k),
    ),
}


# Images with their channels first, read with these last; where vectors of a row are whole, of 8 bytes at least, they are interleaved.
IMAGES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Index]] = {
    "three channels": ((3, 7, 16), (7, 16, 3), lambda h, w, c: (c, h, w)),
    "eight": ((8, 6, 8), (6, 8, 8), lambda h, w, c: (c, h, w)),
    "five of nine": ((2, 9, 40, 24), (2, 40, 24, 5), lambda n, h, w, c: (n, c, h, w)),
    "two, every other row": ((2, 14, 16), (7, 16, 2), lambda h, w, c: (c, mul(h, idx(2)), w)),
}


@pytest.mark.parametrize(
    "dtype", [DType.F16, wide(DType.BF16), wide(DType.F32), DType.I64, DType.U8]
)
@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str, dtype: DType) -> None:
    shape, out, at = IMAGES[name]
    x, y = Tensor("x", shape, dtype), Tensor("y", out, dtype)
    program = Program((x,), (), (compute(y, lambda *i: Load(x, at(*i))),), (y,))
    plan = schedule(program, TARGET, OPTIONS)
    verify(plan, program, TARGET)
    ((step,),) = (stage.steps for stage in stages(plan))
    whole = out[-2] * dtype.itemsize % max(8, 2 * dtype.itemsize) == 0
    assert isinstance(step.method, Interleave) == whole
    values = inputs(program)
    (found,) = emulate(program, plan, emit(program, plan, TARGET, OPTIONS), values)
    (right,) = evaluate(program, values)
    np.testing.assert_array_equal(found, right)


def copy(name: str, dtype: DType) -> Program:
    shape, out, at = (TURNED | OTHERS | TILES)[name]
    x, y = Tensor("x", shape, dtype), Tensor("y", out, dtype)
    return Program((x,), (), (compute(y, lambda *i: Load(x, at(*i))),), (y,))


@pytest.mark.parametrize("dtype", [DType.F16, wide(DType.BF16), wide(DType.F32), DType.I64])
@pytest.mark.parametrize("name", [*TURNED, *OTHERS])
def test_copies(name: str, dtype: DType) -> None:
    program = copy(name, dtype)
    plan = schedule(program, TARGET, OPTIONS)
    verify(plan, program, TARGET)
    ((step,),) = (stage.steps for stage in stages(plan))
    if dtype is DType.F16:
        assert isinstance(step.method, Transpose) == (name in TURNED)
    values = inputs(program)
    (found,) = emulate(program, plan, emit(program, plan, TARGET, OPTIONS), values)
    (right,) = evaluate(program, values)
    np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("dtype", [DType.F16, wide(DType.F8E4M3), DType.F32, wide(DType.I64)])
@pytest.mark.parametrize("name", TILES)
def test_tiles(name: str, dtype: DType) -> None:
    program = copy(name, dtype)
    plan = schedule(program, TARGET, OPTIONS)
    verify(plan, program, TARGET)
    ((step,),) = (stage.steps for stage in stages(plan))
    assert isinstance(step.method, TransposeTiles) == (not name.startswith("a part"))
    values = inputs(program)
    (found,) = emulate(program, plan, emit(program, plan, TARGET, OPTIONS), values)
    (right,) = evaluate(program, values)
    np.testing.assert_array_equal(found, right)


def test_what_lies_behind() -> None:
    def behind(name: str) -> tuple[int, ...]:
        (s,) = copy(name, DType.F16).body
        assert isinstance(s, Compute)
        return axes_after_last(s)

    assert behind("filters") == (1, 2)
    assert behind("behind in another order") == (2, 0)
    assert [behind(n) for n in OTHERS if n.split()[0] in ("a", "channels")] == [()] * 4
