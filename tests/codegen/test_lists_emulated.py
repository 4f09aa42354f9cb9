"""Sums at computed positions from lists of each position's terms, on the emulator: the bits of adding one after the other."""

from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import Tensor

from monotile.choice.chooser import Prefer
from monotile.kernels.scatter.method import Listed
from monotile.plan.nodes import Plan, Stage, Step
from monotile.plan.walk import stages_in
from monotile.targets.cuda.emit import emit
from tests.codegen.emulate import COMPILER, EmulationError
from tests.codegen.emulate_model import TARGET, Emulated
from tests.codegen.variants import by
from tests.frontend.against import Of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")

LISTS = Prefer("cut", by("listed"), Prefer("list rows", lambda way: not way))


def methods(plan: Plan) -> list[Listed]:
    every = [step.method for s in stages_in(plan.body) for step in s.steps]
    return [m for m in every if isinstance(m, Listed)]


def listed(f: Callable[..., Tensor], *args: Tensor, workers: int = 3) -> Emulated:
    fast = Emulated(Of(f), args, workers, chooser=LISTS)
    assert methods(fast.plan)
    return fast


def equal(f: Callable[..., Tensor], *args: Tensor, workers: int = 3) -> None:
    fast = listed(f, *args, workers=workers)
    for seed in (0, 1):
        torch.testing.assert_close(fast(*args, seed=seed)[0], f(*args), rtol=0, atol=0)


def added(x: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    return x.index_add(0, rows, values)


KINDS: dict[str, Callable[[int, int], Tensor]] = {
    "one position": lambda n, _: torch.full((n,), 2),
    "out of order": lambda n, rows: torch.arange(n - 1, -1, -1) % rows,
    "in order": lambda n, rows: torch.arange(n) * rows // n,
    "random": lambda n, rows: torch.randint(0, rows, (n,)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_positions_come_in_any_order(kind: str) -> None:
    fast = listed(
        added, torch.randn(40, 5), torch.zeros(700, dtype=torch.int64), torch.randn(700, 5)
    )
    for seed in (0, 1):
        args = torch.randn(40, 5), KINDS[kind](700, 40), torch.randn(700, 5)
        torch.testing.assert_close(fast(*args, seed=seed)[0], added(*args), rtol=0, atol=0)


@pytest.mark.parametrize(
    "shape", [(1, 2, 1), (3, 2, 1), (9, 33, 7), (50, 300, 64), (7, 260, 300)], ids=str
)
def test_shapes(shape: tuple[int, int, int]) -> None:
    rows, terms, width = shape
    equal(
        added, torch.randn(rows, width), torch.randint(0, rows, (terms,)), torch.randn(terms, width)
    )


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int8],
    ids=str,
)
def test_types(dtype: torch.dtype) -> None:
    """Rounded after each term, as the evaluator does."""
    x, values = (torch.randn(n, 6).mul(9).to(dtype) for n in (11, 90))
    rows, wanted = torch.randint(0, 11, (90,)), x.clone()
    for row, value in zip(rows, values, strict=True):
        wanted[row] += value
    found = listed(added, x, rows, values)(x, rows, values)[0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("terms", [1500, 6000])
def test_lists_that_are_full(terms: int) -> None:
    """All terms for one task, more of them than its lists hold: with fewer at a time, more often."""
    fast = listed(
        added, torch.zeros(8, 3), torch.zeros(terms, dtype=torch.int64), torch.zeros(terms, 3)
    )
    plan = fast.plan
    for place, rows in enumerate((torch.full((terms,), 5), torch.randint(4, 6, (terms,)))):
        stages = tuple(_shortened(s) for s in stages_in(plan.body))
        plan = msgspec.structs.replace(plan, body=stages)
        fast.source = emit(fast.program, plan, TARGET, fast.options)
        args = torch.randn(8, 3), rows, torch.randn(terms, 3)
        torch.testing.assert_close(fast(*args, seed=place)[0], added(*args), rtol=0, atol=0)


def _shortened(stage: Stage) -> Stage:
    def go(step: Step) -> Step:
        if not isinstance(step.method, Listed):
            return step
        return msgspec.structs.replace(
            step, method=msgspec.structs.replace(step.method, capacity=40)
        )

    return msgspec.structs.replace(stage, steps=tuple(go(s) for s in stage.steps))


def test_messages_of_a_graph() -> None:
    """Values that are gathered, weighted and divided; a batch in front and heads behind, for all of which an index counts."""
    source, target = torch.randint(0, 30, (2, 200))
    x, weights = torch.randn(2, 30, 3, 8), torch.rand(2, 200, 3)

    def f(x: Tensor, weights: Tensor, source: Tensor, target: Tensor) -> Tensor:
        total = weights.new_zeros(2, 30, 3).index_add(1, target, weights)
        parts = (weights / total[:, target])[..., None] * x[:, source]
        return torch.zeros_like(x).index_add(1, target, parts)

    fast = listed(f, x, weights, source, target)
    assert len(methods(fast.plan)) == 2
    torch.testing.assert_close(fast(x, weights, source, target)[0], f(x, weights, source, target))


def test_lists_of_each_batch() -> None:
    index = torch.randint(0, 9, (4, 50))

    def f(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
        return x.scatter_add(1, index, values)

    equal(f, torch.randn(4, 9), index, torch.randn(4, 50))


def test_two_axes_are_scattered() -> None:
    def f(x: Tensor, i: Tensor, j: Tensor, values: Tensor) -> Tensor:
        return x.index_put((i, j), values, accumulate=True)

    i, j = torch.randint(0, 5, (80,)), torch.randint(-6, 6, (80,))
    equal(f, torch.randn(5, 6, 3), i, j, torch.randn(80, 3))


def test_the_last_one_wins() -> None:
    def f(x: Tensor, rows: Tensor, values: Tensor) -> Tensor:
        return x.index_put((rows,), values)

    rows = torch.randint(0, 7, (60,))
    equal(f, torch.randn(7, 4), rows, torch.randn(60, 4))


@pytest.mark.parametrize("reduce", ["amax", "amin", "prod"])
def test_other_combiners(reduce: str) -> None:
    def f(x: Tensor, rows: Tensor, values: Tensor) -> Tensor:
        return x.scatter_reduce(0, rows[:, None].expand(values.shape), values, reduce)

    equal(f, torch.randn(6, 5), torch.randint(0, 6, (40,)), torch.randn(40, 5))


def test_an_index_out_of_range_is_found() -> None:
    rows = torch.randint(0, 9, (40,))
    args = torch.randn(9, 4), rows, torch.randn(40, 4)
    fast = listed(added, *args)
    rows[17] = 9
    with pytest.raises(EmulationError):
        fast(*args)


def test_no_terms() -> None:
    args = torch.randn(5, 3), torch.zeros(0, dtype=torch.int64), torch.randn(0, 3)
    fast = Emulated(Of(added), args, chooser=LISTS)
    torch.testing.assert_close(fast(*args)[0], args[0])


def test_each_feature_has_indices_of_its_own() -> None:
    def f(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
        return x.scatter_add(0, index, values)

    equal(f, torch.randn(9, 3), torch.randint(0, 9, (70, 3)), torch.randn(70, 3))


def test_scattered_axes_with_one_between() -> None:
    def f(x: Tensor, i: Tensor, j: Tensor, values: Tensor) -> Tensor:
        return x.index_put((i, torch.arange(3), j), values, accumulate=True)

    i, j = torch.randint(0, 4, (50, 1)), torch.randint(0, 5, (50, 1))
    equal(f, torch.randn(4, 3, 5), i, j, torch.randn(50, 3))


def test_looked_up_where_a_mask_says_so() -> None:
    def f(x: Tensor, rows: Tensor, source: Tensor, mask: Tensor, table: Tensor) -> Tensor:
        return x.index_add(0, rows, torch.where(mask[:, None], table[source], 0.5))

    source, rows = torch.randint(-20, 20, (90,)), torch.randint(0, 8, (90,))
    equal(f, torch.randn(8, 13), rows, source, torch.rand(90) < 0.5, torch.randn(20, 13))


def test_a_source_out_of_range_is_found() -> None:
    def f(x: Tensor, rows: Tensor, source: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, rows, x[source])

    rows, source = torch.randint(0, 9, (2, 40))
    args = torch.randn(9, 4), rows, source
    fast = listed(f, *args)
    torch.testing.assert_close(fast(*args)[0], f(*args))
    source[23] = 9
    with pytest.raises(EmulationError):
        fast(*args)
