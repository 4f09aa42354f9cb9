"""Rolling, fusion and wavefronts keep what random repetitive networks mean.

A network is a random template, a step, repeated with other weights: in a chain, or in a grid of layers and
times. Values are dyadic and small, so that results compare exactly wherever sums are.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monotile.config import Options
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Binary, Const, Expr, Load, Tensor, Unary, idx
from monotile.ir.printer import show
from monotile.ir.program import Compute, Program, compute, statements
from monotile.ir.verify import verify
from monotile.targets.cuda.target import cuda_target
from monotile.transform.fusion.horizontal import fuse_horizontally
from monotile.transform.fusion.inline import inline_views
from monotile.transform.layout.odd_rows import OddProduct, components, odd_product
from monotile.transform.layout.pad_rows import pad_rows
from monotile.transform.roll.reroll_selects import reroll_selects
from monotile.transform.roll.roll import roll
from monotile.transform.roll.skew import skew
from tests.ir.strategies import programs, same, values
from tests.transform.networks import F32, Net, values_for

OPTIONS = Options()
SHAPE = (2, 3)
Draw = Callable[[st.SearchStrategy[Any]], Any]
Passes = tuple[Callable[[Program], Program], ...]

CUDA = cuda_target("sm_90a")


def odd_rows(program: Program) -> Program:
    """Longer rows for every product with odd ones, one group after another."""

    def found(p: Program) -> list[OddProduct]:
        every = (s for s in statements(p.body) if isinstance(s, Compute))
        return [o for s in every if (o := odd_product(s, CUDA)) is not None]

    for group in components(program, found(program)):
        names = {p.name for p in group}
        program = pad_rows(program, [o for o in found(program) if o.name in names])
    return program


PASSES: dict[str, Passes] = {
    "roll": (lambda p: roll(p, OPTIONS),),
    "fuse_horizontally": (fuse_horizontally,),
    "roll, then the rest": (
        lambda p: roll(p, OPTIONS),
        reroll_selects,
        skew,
        fuse_horizontally,
        reroll_selects,
        inline_views,
    ),
    "odd rows": (odd_rows,),
    "rolled, then odd rows": (lambda p: roll(p, OPTIONS), reroll_selects, skew, odd_rows),
    "fused, then rolled": (fuse_horizontally, lambda p: roll(p, OPTIONS), skew, fuse_horizontally),
}


class Template:
    """A random step: a list of operations on operands by number."""

    def __init__(self, draw: Draw, operands: int, results: int) -> None:
        self.results = results
        self.operations: list[tuple[str, int, int]] = []
        count = draw(st.integers(max(results, 2), 5))
        for k in range(count):
            kind = draw(st.sampled_from(["linear", "linear", "add", "max", "abs", "sum", "twin"]))
            known = operands + k
            a = draw(st.integers(0, known - 1))
            b = draw(st.integers(0, known - 1))
            self.operations.append((kind, a, b))

    def weights(self, n: Net) -> list[Tensor]:
        return [n.weight(SHAPE[1], SHAPE[1]) for _ in self.operations]

    def apply(
        self, n: Net, operands: list[tuple[Tensor, tuple[Expr, ...]]], w: list[Tensor]
    ) -> list[Tensor]:
        """The results: the last ones computed."""
        known = list(operands)
        for (kind, a, b), weight in zip(self.operations, w, strict=True):
            known.append((_operation(n, kind, known[a], known[b], weight), ()))
        return [t for t, _ in known[-self.results :]]


def _operation(
    n: Net,
    kind: str,
    a: tuple[Tensor, tuple[Expr, ...]],
    b: tuple[Tensor, tuple[Expr, ...]],
    w: Tensor,
) -> Tensor:
    t = Tensor(n.name(kind), SHAPE, F32)

    def at(x: tuple[Tensor, tuple[Expr, ...]], *i: Expr) -> Expr:
        return Load(x[0], (*x[1], *i))

    half = Const(0.5, F32)
    match kind:
        case "linear":
            s = compute(
                t,
                lambda i, j, r: Binary("mul", at(a, i, r), Load(w, (j, r))),
                reduce=(SHAPE[1],),
                combiner="sum",
            )
        case "sum":
            s = compute(t, lambda i, j, r: at(a, i, r), reduce=(SHAPE[1],), combiner="max")
        case "abs":
            s = compute(t, lambda i, j: Unary("abs", at(a, i, j)))
        case "twin":
            s = compute(
                t, lambda i, j: Binary("mul", Binary("add", at(a, i, j), at(b, i, j)), half)
            )
        case _:
            s = compute(t, lambda i, j: Binary(kind, at(a, i, j), at(b, i, j)))
    return n.add(s, t)


def _outputs(draw: Draw, n: Net, known: list[Tensor]) -> list[Tensor]:
    out = [known[-1]]
    if draw(st.booleans()):
        out.append(n.stack(known))
    if draw(st.booleans()):
        out += draw(st.lists(st.sampled_from(known), max_size=2))
    return out


@st.composite
def chains(draw: Draw) -> Program:
    """A template repeated in a chain, each time with other weights, perhaps with a slice of a sequence."""
    n = Net()
    count = draw(st.integers(2, 6))
    xs = n.input(count, *SHAPE)
    states = draw(st.integers(1, 3))
    template = Template(draw, states + 2, states)
    current = [n.zeros(*SHAPE) if draw(st.booleans()) else n.input(*SHAPE) for _ in range(states)]
    fixed = n.input(*SHAPE)
    shared = template.weights(n)
    sharing = draw(st.booleans())
    known: list[Tensor] = []
    side = draw(st.sampled_from([None, None, "each", "once"]))
    for k in range(count):
        if side == "each" or (side == "once" and k == draw(st.integers(0, 2))):
            known.append(_operation(n, "abs", (xs, (idx(k),)), (fixed, ()), fixed))
        operands: list[tuple[Tensor, tuple[Expr, ...]]] = [(t, ()) for t in current]
        operands += [(xs, (idx(k),)), (fixed, ())]
        current = template.apply(n, operands, shared if sharing else template.weights(n))
        known += current
    return n.program(*_outputs(draw, n, known))


@st.composite
def grids(draw: Draw) -> Program:
    """A template over layers and times: it reads the layer below at this time, and itself at the time before."""
    n = Net()
    layers, times = draw(st.integers(2, 4)), draw(st.integers(2, 5))
    xs = n.input(times, *SHAPE)
    states = draw(st.integers(1, 2))
    template = Template(draw, states + 1, states)
    weights = [template.weights(n) for _ in range(layers)]
    zero = n.zeros(*SHAPE)
    inits = [
        [zero if draw(st.booleans()) else n.input(*SHAPE) for _ in range(states)]
        for _ in range(layers)
    ]
    order = [(k, t) for t in range(times) for k in range(layers)]
    if draw(st.booleans()):
        order.sort()
    cells: dict[tuple[int, int], list[Tensor]] = {}
    for k, t in order:
        below = (cells[k - 1, t][-1], ()) if k else (xs, (idx(t),))
        before = cells[k, t - 1] if t else inits[k]
        operands: list[tuple[Tensor, tuple[Expr, ...]]] = [below, *((s, ()) for s in before)]
        cells[k, t] = template.apply(n, operands, weights[k])
    top = [cells[layers - 1, t][-1] for t in range(times)]
    ends = [s for k in range(layers) for s in cells[k, times - 1]] if draw(st.booleans()) else []
    return n.program(*_outputs(draw, n, top), *ends)


def check(before: Program, passes: Passes, given_values: dict[str, Any]) -> None:
    verify(before)
    after = before
    for f in passes:
        after = f(after)
        verify(after)
    with np.errstate(all="ignore"):
        for a, b in zip(evaluate(before, given_values), evaluate(after, given_values), strict=True):
            close = same(a, b) or np.allclose(
                a.astype(np.float64), b.astype(np.float64), rtol=1e-5, atol=1e-5, equal_nan=True
            )
            assert close, show(before) + show(after)


@pytest.mark.parametrize("name", PASSES)
@given(program=chains(), seed=st.integers(0, 1 << 16))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_chains(name: str, program: Program, seed: int) -> None:
    check(program, PASSES[name], values_for(program, seed))


@pytest.mark.parametrize("name", PASSES)
@given(program=grids(), seed=st.integers(0, 1 << 16))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_grids(name: str, program: Program, seed: int) -> None:
    check(program, PASSES[name], values_for(program, seed))


@pytest.mark.parametrize("name", PASSES)
@given(program=programs(), seed=st.integers(0, 1 << 16))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_program(name: str, program: Program, seed: int) -> None:
    check(program, PASSES[name], values(program, seed))
