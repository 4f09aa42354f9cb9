"""Fitting the products' constants to times that are made up, and the kernels that would measure them."""

import msgspec
import numpy as np
import pytest

from monotile.config import Options
from monotile.targets.calibration import flat, replaced
from monotile.targets.cuda.build import build
from monotile.targets.cuda.calibrate import probes, products
from monotile.targets.cuda.calibrate.fit import FARTHEST, Vector, fit, fit_checked
from monotile.targets.cuda.calibrate.products import TOGETHER, fitted_constants, predicted, sweep
from monotile.targets.cuda.target import cuda_target
from monotile.targets.timing import Timing

H100, A100 = cuda_target("sm_90a"), cuda_target("sm_80")
TRUTH = {"groups.path": 0.9, "warps.chip": 2.5, "sums": 7.0}


def times_of(truth: dict[str, float], noise: float) -> list[Timing]:
    """What a GPU would take whose constants are `truth`."""
    model = replaced(H100.model, {f"matmul.{n}": v for n, v in truth.items()})
    real = msgspec.structs.replace(H100, model=model)
    errors = np.exp(np.random.default_rng(0).normal(0, noise, len(sweep(H100))))
    return [Timing(predicted(w, real) * float(e), True) for w, e in zip(sweep(H100), errors, strict=True)]  # fmt: skip


def test_constants_are_found() -> None:
    found = fitted_constants(sweep(H100), times_of(TRUTH, 0.02), H100)
    for name, value in TRUTH.items():
        assert found[f"model.matmul.{name}"].value == pytest.approx(value, rel=0.15)
    start = flat(H100.model)
    for name, m in found.items():
        if name.removeprefix("model.matmul.") not in TRUTH:
            assert m.value == pytest.approx(start[name.removeprefix("model.")], rel=0.3)


def test_outliers_and_unsteady_times_count_little() -> None:
    times = times_of(TRUTH, 0.02)
    times[3] = Timing(5 * times[3].seconds, True)
    times[8] = Timing(100 * times[8].seconds, False)
    found = fitted_constants(sweep(H100), times, H100)
    for name, value in TRUTH.items():
        assert found[f"model.matmul.{name}"].value == pytest.approx(value, rel=0.2)


def test_nothing_changes_where_that_is_no_better() -> None:
    assert fitted_constants(sweep(H100), times_of({}, 0.03), H100) == {}
    few = sweep(H100)[:6]
    assert fitted_constants(few, times_of(TRUTH, 0.02)[:6], H100) == {}


def test_constants_do_not_run_away() -> None:
    def predict(x: Vector) -> Vector:
        return np.array([x[0], x[0], x[0] + x[1]])

    start = np.array([1.0, 1e-9])
    found = fit(predict, start, np.array([50.0, 50.0, 50.0]))
    assert np.all(np.abs(np.log(found / start)) <= FARTHEST + 1e-9)
    assert fit_checked(predict, start, np.array([1.0, 1.0, 1.0])) is None


@pytest.mark.parametrize("target", [H100, A100], ids=lambda t: t.architecture)
def test_the_sweep_is_short_and_has_every_instruction(target: object) -> None:
    assert target in (H100, A100)
    gpu = H100 if target is H100 else A100
    ways = sweep(gpu)
    assert 20 <= len(ways) <= 48
    kinds = {w.cut.instruction for w in ways}
    assert kinds == ({"wgmma", "mma"} if gpu is H100 else {"mma"})
    assert all(w.nbytes <= gpu.shared_bytes for w in ways)


@pytest.mark.parametrize("name", ["sm_80", "sm_86", "sm_89", "sm_90a"])
def test_the_probes_compile(name: str) -> None:
    binary = build(probes.source(), cuda_target(name), Options(cache=False))
    for probe in ("read", "copy", "intake", "barrier", "flag", "chase", "empty"):
        assert f"probe_{probe}" in binary.ptx


@pytest.mark.parametrize("target", [H100, A100], ids=lambda t: t.architecture)
@pytest.mark.parametrize("first", [0, -TOGETHER])
def test_the_products_compile(target: object, first: int) -> None:
    gpu = H100 if target is H100 else A100
    ways = sweep(gpu)
    part = ways[first:] if first else ways[:TOGETHER]
    binary = build(products.source(part), gpu, Options(cache=False))
    assert all(f"way_{i}" in binary.ptx for i in range(len(part)))
    assert "wgmma serialized" not in binary.log.lower()
