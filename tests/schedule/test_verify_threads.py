"""The verifier refuses Plans in which the threads of a task share its part in a way that does not add up."""

from typing import Any

import msgspec
import pytest

from monotile.errors import VerificationError
from monotile.kernels.common.epilogue import Epilogue
from monotile.kernels.common.operand import Operand
from monotile.kernels.elementwise.method import Map
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.reduction.method import Reduce
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan, Step
from tests.schedule import programs as p
from tests.schedule.test_messages import LSTM
from tests.schedule.test_verify import CHAIN, MLP, refused, steps

replace = msgspec.structs.replace


def with_methods(plan: Plan, kind: type[Any], **fields: Any) -> Plan:
    """`plan` with these fields in every method of one kind; there are some."""
    assert any(isinstance(x.method, kind) for s in p.stages(plan) for x in s.steps)

    def changed(step: Step) -> Step:
        if not isinstance(step.method, kind):
            return step
        method: Any = step.method
        return replace(step, method=replace(method, **fields))

    return steps(plan, changed)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vector": 3}, "do not divide its last axis"),
        ({"together": 7}, "neighbours do not divide"),
        ({"runs": 5000}, "runs of"),
        ({"unroll": 1000}, "on their way of"),
        ({"unroll": 0}, "takes none"),
        ({"order": (0, 0)}, "the order"),
        ({"outputs": 2, "vector": 1, "lanes": 1, "together": 2}, "by itself"),
    ],
)
def test_lanes_that_do_not_share_evenly(fields: dict[str, Any], words: str) -> None:
    refused(with_methods(p.plan_of(CHAIN, p.H100), Reduce, **fields), CHAIN, words)


@pytest.mark.parametrize(
    ("vector", "words"), [(3, "cannot take 3"), (8, ""), (64, "cannot take 64"), (0, "none of")]
)
def test_vectors_divide_what_a_task_has(vector: int, words: str) -> None:
    """Rows of 40 elements."""
    broken = with_methods(p.plan_of(CHAIN, p.H100), Map, vector=vector)
    if words:
        refused(broken, CHAIN, words)
    else:
        verify(broken, CHAIN, p.H100)


@pytest.mark.parametrize("first", [-32, 256])
def test_steps_begin_with_a_thread_of_the_worker(first: int) -> None:
    plan = p.plan_of(CHAIN, p.H100)
    broken = steps(plan, lambda s: replace(s, first_thread=first))
    refused(broken, CHAIN, "cannot begin with thread")
    lanes = steps(plan, lambda s: replace(s, first_thread=32))
    refused(lanes, CHAIN, "cannot begin with thread 32")  # of one output, not of vectors


def test_outputs_side_by_side_divide_theirs() -> None:
    x, y = p.tensor("x", 9, 56, 56, 64), p.tensor("y", 56, 56, 64)
    made = p.compute(y, lambda i, j, c, r: p.Load(x, (r, i, j, c)), reduce=(9,), combiner="sum")
    program = p.program([x], [made], y)
    plan = p.plan_of(program, p.H100)
    (method,) = (x.method for s in p.stages(plan) for x in s.steps)
    assert isinstance(method, Reduce)
    assert method.exact
    refused(with_methods(plan, Reduce, outputs=24), program, "24 outputs do not divide")
    refused(with_methods(plan, Reduce, together=2), program, "by itself")
    refused(with_methods(plan, Reduce, unrolled=(1, 1)), program, "in straight line of")
    refused(with_methods(plan, Reduce, unrolled=(10,)), program, "in straight line of")


def test_rows_of_columns_that_are_on_their_way() -> None:
    x, w, y = p.tensor("x", 4096), p.tensor("w", 4096, 1024), p.tensor("y", 1024)
    made = p.compute(
        y,
        lambda j, k: p.Binary("mul", p.Load(x, (k,)), p.Load(w, (k, j))),
        reduce=(4096,),
        combiner="sum",
    )
    program = p.program([x, w], [made], y)
    plan = p.plan_of(program, p.H100)
    assert any(x.method.by_columns for s in p.stages(plan) for x in s.steps if isinstance(x.method, Reduce))  # fmt: skip
    refused(with_methods(plan, Reduce, unroll=4096), program, "rows are on their way")


def test_functions_are_those_of_a_kernel() -> None:
    plan = p.plan_of(CHAIN, p.CPU)
    broken = replace(plan, launch=replace(plan.launch, functions="separate"))
    with pytest.raises(VerificationError, match="functions are separate"):
        verify(broken, CHAIN, p.CPU)


def test_weights_in_registers_are_the_same_vectors_every_time() -> None:
    """Of prefetched ones, and of what a loop keeps."""
    program = p.recurrence(width=256)
    plan = p.plan_of(program, p.H100)
    (reduce,) = (x.method for s in p.stages(plan) for x in s.steps if isinstance(x.method, Reduce))
    assert reduce.ahead("stage", "weights")
    assert reduce.lanes == 64
    refused(with_methods(plan, Reduce, lanes=8), program, "in registers")
    assert all(r.held for loop in LSTM.loops for r in loop.resident)
    broken = with_methods(LSTM.plan, Reduce, unroll=1)
    refused(broken, LSTM.program, "keep a weight of .* in registers")


@pytest.mark.parametrize(
    ("width", "words"), [(8, "8 sums at once"), (3, "3 sums at once"), (0, "0 sums at once")]
)
def test_sums_of_a_product_divide_its_columns(width: int, words: str) -> None:
    plan = p.plan_of(MLP, p.H100)
    refused(with_methods(plan, Matmul, epilogue=Epilogue(width)), MLP, words)


def test_rows_that_leave_by_rows_are_of_odd_length() -> None:
    plan = p.plan_of(MLP, p.H100)
    refused(with_methods(plan, Matmul, epilogue=Epilogue(4, by_rows=True)), MLP, "by rows")
    a, b = p.tensor("a", 64, 256, dtype=p.F16), p.tensor("b", 257, 256, dtype=p.F16)
    made = p.matmul("y", a, b, turned=True)
    program = p.program([a, b], [made], made.out)
    plan = p.plan_of(program, p.H100)
    verify(plan, program, p.H100)
    (method,) = (x.method for s in p.stages(plan) for x in s.steps)
    assert isinstance(method, Matmul)
    refused(with_methods(plan, Matmul, epilogue=Epilogue(4)), program, "do not divide its columns")


def test_steady_columns_are_the_same_in_every_turn() -> None:
    plan = p.plan_of(MLP, p.H100)
    broken = with_methods(plan, Matmul, epilogue=Epilogue(4, steady=True))
    refused(broken, MLP, "other columns")


def test_operands_are_read_as_they_lie() -> None:
    plan = p.plan_of(MLP, p.H100)
    for wrong in (Operand("k", 16, "async"), Operand("k", 3, "element")):
        refused(with_methods(plan, Matmul, left=wrong), MLP, "cannot be read so")


@pytest.mark.parametrize(
    ("sums", "words"),
    [((0, 0), "no whole blocks"), ((33, 32), "no whole blocks"), ((1 << 12, 32), "too many"), ((32, 1 << 20), "too many")],
)  # fmt: skip
def test_sums_that_stay_in_the_cache_are_whole_blocks(sums: tuple[int, int], words: str) -> None:
    plan = p.plan_of(MLP, p.CPU)
    verify(plan, MLP, p.CPU)
    methods = [x.method for s in p.stages(plan) for x in s.steps]
    assert all(m.sums is not None for m in methods if isinstance(m, Matmul))
    with pytest.raises(VerificationError, match=words):
        verify(with_methods(plan, Matmul, sums=sums), MLP, p.CPU)
