"""What is removed because of the parameters' zeros, and that the results stay."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from monotile.analysis.pruning.facts import facts_of
from monotile.analysis.pruning.specialised import Specialised
from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Program
from monotile.ir.scalar import Array
from monotile.ir.verify import verify
from monotile.transform.fusion.inline import inline_views
from monotile.transform.simplify.simplify import simplify
from monotile.transform.specialise import specialise
from tests.ir.strategies import programs, values
from tests.transform.networks import Net
from tests.transform.pruned_programs import pruned, pruned_values

MANY = settings(max_examples=75, deadline=None, suppress_health_check=list(HealthCheck))


def gathered(values: Mapping[str, Array], report: Specialised) -> dict[str, Array]:
    out = dict(values)
    for name, g in report.gathered.items():
        for d, kept in g.kept:
            out[name] = np.take(out[name], kept, axis=d)
    return out


def removed(program: Program, values: Mapping[str, Array]) -> Specialised:
    """What is removed; the results are the same."""
    program = simplify(program, Options())
    parts = {w.parts[0] for w in program.weights}
    smaller, report = specialise(program, facts_of({n: values[n] for n in parts}))
    verify(smaller)
    verify(simplify(smaller, Options()))
    (old,), (new,) = evaluate(program, values), evaluate(smaller, gathered(values, report))
    np.testing.assert_allclose(new, old, rtol=1e-3, atol=1e-4 * (1 + np.abs(old).max()))
    return report


@pytest.mark.parametrize(
    ("dead", "kept"), [((32, 40), [32, 32]), ((40, 32, 32), [32] * 3), ((48, 0, 0), [16])]
)
def test_equal_layers_keep_equally_many(dead: tuple[int, ...], kept: list[int]) -> None:
    """Unless that would keep over half of what could go."""
    n = Net()
    x = first = n.input(3, 64)
    found: dict[str, Array] = {}
    rng = np.random.default_rng(0)
    for count in dead:
        up, down = n.weight(64, 64), n.weight(64, 64)
        x = n.pointwise("add", x, n.linear(n.pointwise("tanh", n.linear(x, up)), down))
        for w in (up, down):
            found[f"{w.name}.part"] = rng.standard_normal((64, 64)).astype(np.float32) / 8
        found[f"{up.name}.part"][:count] = 0
    found[first.name] = rng.standard_normal(first.shape).astype(np.float32)
    assert [r.kept for r in removed(n.program(x), found).removed] == kept


@given(program=pruned(), data=st.data())
@MANY
def test_the_meaning_stays(program: Program, data: st.DataObject) -> None:
    report = removed(program, pruned_values(data.draw, program))
    event("something removed" if report.removed else "nothing removed")


@given(program=pruned(), data=st.data())
@MANY
def test_what_is_not_relied_on_may_change(program: Program, data: st.DataObject) -> None:
    """Other weights with the same relied zeros give the right results with the kernel of the first ones."""
    program = simplify(program, Options())
    given_values = pruned_values(data.draw, program)
    parts = {w.parts[0] for w in program.weights}
    smaller, report = specialise(program, facts_of({n: given_values[n] for n in parts}))
    rng = np.random.default_rng(0)
    for name in parts:
        x = rng.standard_normal(given_values[name].shape).astype(np.float32)
        if (relied := report.relied.get(name)) is not None:
            if relied.values:
                known = relied.vector.astype(np.float32).reshape(x.shape)
                x = np.where(np.isnan(known), x, known)
            else:
                x[relied.mask] = 0
        given_values[name] = x
    (old,), (new,) = (
        evaluate(program, given_values),
        evaluate(smaller, gathered(given_values, report)),
    )
    np.testing.assert_allclose(new, old, rtol=1e-3, atol=1e-4 * (1 + np.abs(old).max()))


@given(program=programs(), seed=st.integers(0, 1 << 16))
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_program(program: Program, seed: int) -> None:
    """With loops, branches and Scatters, and half of the weights' rows and columns zero; where the results are finite."""
    program = simplify(inline_views(program), Options(excess_precision=False))
    found, rng = values(program, seed), np.random.default_rng(seed)
    for name, x in found.items():
        if not DType.from_numpy(x.dtype).is_int and x.dtype != bool:
            found[name] = np.where(np.isfinite(x.astype(float)), x, 1).astype(x.dtype)
    for part in {p for w in program.weights for p in w.parts}:
        found[part] = found[part].copy()
        for d, n in enumerate(found[part].shape):
            np.moveaxis(found[part], d, 0)[rng.random(n) < 0.5] = 0
    parts = {p for w in program.weights for p in w.parts}
    smaller, report = specialise(program, facts_of({n: found[n] for n in parts}))
    verify(smaller)
    before, after = evaluate(program, found), evaluate(smaller, gathered(found, report))
    for x, y in zip(before, after, strict=True):
        old, new = x.astype(float), y.astype(float)
        finite = np.isfinite(old)
        np.testing.assert_allclose(new[finite], old[finite], rtol=1e-2, atol=1e-3)
