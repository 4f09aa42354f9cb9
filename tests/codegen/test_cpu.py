"""The CPU target against the reference evaluator."""

from collections.abc import Callable

import numpy as np
import pytest

from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Program
from monotile.targets.cpu.target import cpu_target
from tests.codegen import cpu_programs as programs
from tests.codegen.cpu_run import Array, Compiled, random_values

TOLERANCE = {2: 2e-2, 4: 2e-6, 8: 1e-13}
VECTORS = (32, 64)


def agree(got: tuple[Array, ...], want: tuple[Array, ...]) -> None:
    for g, w in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        if w.dtype.kind in "fV":
            scale = max(1.0, float(np.nanmax(np.abs(w.astype(np.float64)), initial=0.0)))
            bound = TOLERANCE[w.dtype.itemsize] * scale
            np.testing.assert_allclose(
                g.astype(np.float64), w.astype(np.float64), rtol=0, atol=bound
            )
        else:
            np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "left", "right"),
    [
        (33, 70, 45, DType.F32, "k", "k"),
        (5, 64, 300, DType.F32, "k", "k"),
        (33, 70, 600, DType.F32, "k", "mn"),
        (16, 64, 32, DType.F32, "mn", "mn"),
        (33, 70, 45, DType.F32, "none", "none"),
        (33, 70, 45, DType.F16, "k", "k"),
        (6, 33, 45, DType.BF16, "k", "k"),
        (20, 64, 45, DType.BF16, "k", "mn"),
        (20, 48, 300, DType.F64, "k", "k"),
        (200, 33, 9, DType.F64, "mn", "none"),
    ],
)
def test_products(m: int, n: int, k: int, dtype: DType, left: str, right: str, vector: int) -> None:
    program = programs.linear(m, n, k, dtype, left=left, right=right)
    target = cpu_target(workers=3, vector_bytes=vector)
    compiled = Compiled(program, target=target)
    assert '"type": "matmul"' in compiled.plan.to_json()
    values = random_values(program)
    agree(compiled(values), evaluate(program, values))


@pytest.mark.parametrize(
    "make",
    [
        programs.convolution,
        programs.gather,
        programs.transposed,
        programs.layers,
        programs.append,
        programs.hashed,
    ],
)
@pytest.mark.parametrize("workers", [2, 7])
def test_programs(make: Callable[[], Program], workers: int) -> None:
    program = make()
    compiled = Compiled(program, target=cpu_target(workers=workers))
    values = random_values(program)
    for t in program.inputs:
        if t.dtype is DType.I64:
            values[t.name] = np.abs(values[t.name]) % 5
    for _ in range(2):
        agree(compiled(values), evaluate(program, values))


CASES: list[programs.Case] = [
    ((3, 50), (1,)),
    ((50, 3), (0,)),
    ((5, 7, 90), (0, 1)),
    ((4, 6, 5), (0, 2)),
    ((2, 70, 6), (1,)),
]


@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_reductions(combiner: str) -> None:
    dtypes = [DType.F32, DType.F16, DType.F64, DType.I64, DType.U8]
    program = programs.reductions(combiner, dtypes, CASES)
    values = random_values(program)
    real = [t.name for t in program.inputs if t.dtype.is_float]
    if combiner == "prod":
        values |= {n: (1 + values[n] / 100).astype(values[n].dtype) for n in real}
    compiled = Compiled(program)
    agree(compiled(values), evaluate(program, values))
    for n in real:
        values[n][..., 2] = np.nan
    agree(compiled(values), evaluate(program, values))


@pytest.mark.parametrize("combiner", ["any", "all"])
def test_logical_reductions(combiner: str) -> None:
    program = programs.reductions(combiner, [DType.BOOL], CASES)
    compiled = Compiled(program)
    rng = np.random.default_rng(0)
    for density in (0.0, 0.05, 0.5, 0.95, 1.0):
        values = {t.name: rng.random(t.shape) < density for t in program.inputs}
        agree(compiled(values), evaluate(program, values))


@pytest.mark.parametrize(
    ("shape", "over"),
    [
        ((6000, 3), (0,)),
        ((3, 6000), (1,)),
        ((400000,), (0,)),
        ((60, 3, 50, 40), (0, 2, 3)),
        ((440, 7, 30), (0,)),
        ((20, 3000, 16), (0, 1)),
    ],
)
def test_long_sums_are_accurate(shape: tuple[int, ...], over: tuple[int, ...]) -> None:
    """Also where most terms are so small beside the others that a total to which they are added one by one would not change."""
    program = programs.reductions("sum", [DType.F32], [(shape, over)])
    compiled = Compiled(program)
    rng = np.random.default_rng(0)
    for small in (1.0, 3e-6):
        x = rng.random(shape).astype(np.float32)
        x *= np.where(rng.random(shape) < 0.2, 1, small).astype(np.float32)
        if small < 1:
            x = -np.sort(-x.reshape(-1)).reshape(shape)
        (name,) = (t.name for t in program.inputs)
        (got,) = compiled({name: x})
        exact = x.astype(np.float64).sum(over)
        assert float(np.max(np.abs(got.astype(np.float64) - exact) / exact)) < 1e-6


def test_an_index_out_of_range_is_reported() -> None:
    compiled = Compiled(programs.gather())
    values = random_values(programs.gather())
    for bad in (11, -1, 1 << 40):
        values["ids"] = np.array([0, 10, 3, bad, 2])
        status, _ = compiled.status(values)
        message = compiled.source.checks[status - 1]
        assert message == "index out of range for table, of extent 11, at m.py:7"
    values["ids"] = np.array([0, 10, 3, 1, 2])
    assert compiled.status(values)[0] == 0


def test_indices_are_as_wide_as_they_must_be() -> None:
    assert "MT_WIDE" in Compiled(programs.hashed()).source.text
    assert "MT_WIDE" not in Compiled(programs.transposed()).source.text


def test_rounding_in_between_is_kept_or_not() -> None:
    """x + 1 in bfloat16, minus 1: rounding in between loses x."""
    program = programs.between()
    values = {"x": np.full((8,), 0.001, DType.BF16.numpy)}
    (exact,) = Compiled(program, options=Options(cache=False, excess_precision=True))(values)
    (rounded,) = Compiled(program, options=Options(cache=False, excess_precision=False))(values)
    assert np.all(np.asarray(rounded, np.float32) == 0)
    assert np.all(np.asarray(exact, np.float32) > 0)


def test_the_source_reads_well(golden: Callable[[str, str], None]) -> None:
    """Golden file: change it knowingly."""
    golden("cpu_layers.c", Compiled(programs.layers()).source.text)
