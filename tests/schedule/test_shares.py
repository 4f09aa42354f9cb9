"""Stages that wait for the same hand-off stand side by side where that takes less than one after the other."""

import math

import pytest

from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Expr, Load, Tensor, idx
from monotile.ir.program import Program, Weight, compute
from monotile.kernels.draft import Context
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Stage
from monotile.schedule.sharing import share_workers
from monotile.schedule.tree import build, drafts_of
from tests.schedule import programs as p

F16 = DType.F16


def products(count: int, rows: int = 128, width: int = 768) -> Program:
    """`count` products of exp(x), each with a weight of its own."""
    x = p.tensor("x", rows, width, dtype=F16)
    first = p.pointwise("first", x)
    weights = [Tensor(f"w{i}", (width, width), F16) for i in range(count)]
    made = [p.matmul(f"y{i}", first.out, w, turned=True) for i, w in enumerate(weights)]
    given = tuple(Weight(w, (f"part_{w.name}",)) for w in weights)
    return p.ready(Program((x,), given, (first, *made), tuple(s.out for s in made)))


def beside_copies(rows: int) -> Program:
    """A product of a product, and two copies of the latter that are turned about."""
    x, w = p.tensor("x", rows, 768, dtype=F16), Tensor("w", (768, 768), F16)
    first = p.matmul("first", x, w)

    def turned(h: Expr, t: Expr, d: Expr) -> Expr:
        return Load(first.out, (t, Binary("add", Binary("mul", h, idx(64)), d)))

    copies = [compute(Tensor(f"copy{i}", (12, rows, 64), F16), turned) for i in (0, 1)]
    y = p.matmul("y", first.out, w, turned=True)
    body = (first, *copies, y)
    return p.ready(Program((x,), (Weight(w, ("part",)),), body, tuple(s.out for s in body[1:])))


def run_of(program: Program) -> list[Stage]:
    """The stages that read what the first one made."""
    plan = p.plan_of(program, p.H100)
    verify(plan, program, p.H100)
    first, *rest = p.stages(plan)
    assert {s.handoff for s in rest[1:]} <= {"none", "block"}
    assert rest[0].handoff == "grid"
    assert first.handoff == "none"
    return rest


def workers(stage: Stage) -> set[int]:
    return {(stage.first + t) % p.H100.workers for t in range(math.prod(stage.grid))}


@pytest.mark.parametrize("count", [2, 3])
def test_products_that_would_fill_all_workers_have_a_part_of_them_each(count: int) -> None:
    run = run_of(products(count))
    assert len(run) == count
    assert sum(math.prod(s.grid) for s in run) == len(set().union(*map(workers, run)))


def test_copies_take_the_workers_that_a_product_leaves() -> None:
    run = run_of(beside_copies(64))
    assert [s.name for s in run] == ["stage_y", "stage_copy0", "stage_copy1"]
    assert run[0].late
    assert sum(math.prod(s.grid) for s in run) == len(set().union(*map(workers, run)))


def test_products_of_several_rounds_take_all_workers_one_after_the_other() -> None:
    for stage in run_of(products(2, rows=8192)):
        assert len(workers(stage)) == p.H100.workers


def test_a_program_that_is_asked_about_again_is_built_and_shared_once() -> None:
    """A pass compares each candidate with the Program that it has kept, of which nothing is made anew."""
    program = products(3)
    context = Context.of(program, p.H100)
    tree = build(program, context)
    assert build(products(3), context) is tree  # an equal one
    first, second = (list(drafts_of(share_workers(tree, context))) for _ in range(2))
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert first != list(drafts_of(tree))
    other = build(products(2), context)
    assert len(list(drafts_of(share_workers(other, context)))) == len(list(drafts_of(other)))
