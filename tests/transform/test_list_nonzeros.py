"""Products along lists of what a mask leaves: when there are some, that they change nothing, and what they read."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import monotile
from monotile.config import Options
from monotile.errors import InputError
from monotile.frontends.torch.capture import capture
from monotile.ir import expr
from monotile.ir import program as ir
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import MaskTensor, loads
from monotile.ir.program import Compute, Live, Program, statements
from monotile.ir.signature import TensorLeaf
from monotile.ir.verify import verify
from monotile.kernels.draft import Context
from monotile.pipeline import transform
from monotile.schedule.live import bound
from monotile.targets.cuda.target import cuda_target
from monotile.transform.live.bound import bound_live
from monotile.transform.names import Names
from monotile.transform.sparse.list_nonzeros import list_nonzeros
from monotile.transform.sparse.nonzeros import Nonzeros
from tests.models.sparse_networks import NETWORKS, Blocks, Rows, Stated, inputs


def captured(model: nn.Module, args: Sequence[Tensor]) -> tuple[Program, dict[str, np.ndarray]]:
    found = capture(model.eval(), tuple(args))
    leaves = [x for x in found.signature.inputs if isinstance(x, TensorLeaf)]
    given = {leaf.tensor.name: x.numpy() for leaf, x in zip(leaves, args, strict=True)}
    given |= {n: x.detach().numpy() for n, x in found.parameters.items()}
    return found.program, given | found.constants


def listed(program: Program) -> bool:
    return any(
        t.out.name.startswith("nonzeros")
        for t in statements(program.body)
        if isinstance(t, Compute)
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_lists_change_nothing(name: str) -> None:
    model, args = inputs(name)
    before, given = captured(model, args)
    after = list_nonzeros(before)
    verify(after)
    assert listed(after)
    masks = [
        x
        for s in statements(after.body)
        if isinstance(s, Compute)
        for x in loads(s.body)
        if isinstance(x.tensor, MaskTensor)
    ]
    assert not masks
    (wanted,), (found,) = (evaluate(p, given) for p in (before, after))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_bounds_of_rows_change_nothing(name: str) -> None:
    """What is undefined is NaN in the evaluator."""
    model, args = inputs(name)
    before, given = captured(model, args)
    whole, constants = transform(before, {}, Options())
    bounded = bound_live(whole, apart=lambda *_: True)
    verify(bounded)
    live = [x for s in statements(bounded.body) if isinstance(s, Compute) for x in s.live if x.at]
    assert live
    (wanted,), (found,) = (evaluate(p, given | dict(constants)) for p in (before, bounded))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_only_what_is_stated_is_listed() -> None:
    class Unstated(nn.Module):
        def forward(self, x: Tensor, mask: Tensor, w: Tensor) -> Tensor:
            return (x * mask.repeat_interleave(32, 0)) @ w

    _, args = inputs("rows")
    program, _ = captured(Unstated(), args)
    assert list_nonzeros(program) == program


@pytest.mark.parametrize("grain", [(1, 1), (8, 1), (1, 256)])
def test_rows_that_share_nothing_are_no_lists(grain: tuple[int, int]) -> None:
    """Fewer rows than tensor cores take, or all of a row at once."""
    model, x = Stated(grain), torch.randn(64, 256)
    program, _ = captured(model, (x, torch.randn(256, 32)))
    after = list_nonzeros(program)
    assert not listed(after)
    assert torch.equal(model(x, torch.eye(256)), x)


def test_masks_are_shared_by_the_products_of_a_layer() -> None:
    class Gated(nn.Module):
        def forward(self, x: Tensor, mask: Tensor, u: Tensor, v: Tensor) -> Tensor:
            kept = x * monotile.sparse(mask).repeat_interleave(32, 0)
            return (kept @ u) * (kept @ v)

    _, (x, mask, w) = inputs("rows")
    program, _ = captured(Gated(), (x, mask, w, w + 1))
    after = list_nonzeros(program)
    assert (
        sum(
            s.out.name.startswith("nonzeros")
            for s in statements(after.body)
            if isinstance(s, Compute)
        )
        == 1
    )


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 3),
    extent=st.integers(1, 200),
    share=st.sampled_from([0.0, 0.03, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_positions(rows: int, extent: int, share: float, seed: int) -> None:
    """In order, however many there are, in rows of any length."""
    mask = expr.Tensor("mask", (rows, extent), DType.BOOL)
    empty = Program((mask,), (), (), (mask,))
    found = Nonzeros((rows,), extent, lambda row, k: expr.Load(mask, (*row, k)), Names(empty), "")
    count, last = found.count, found.made[-1].out
    values = np.random.default_rng(seed).random((rows, extent)) < share
    counts, positions = evaluate(
        Program((mask,), (), tuple(found.made), (count, last)), {"mask": values}
    )
    for row in range(rows):
        wanted = np.flatnonzero(values[row])
        assert counts[row] == len(wanted)
        np.testing.assert_array_equal(positions[row, : len(wanted)], wanted)


@pytest.mark.parametrize(
    ("shape", "grain", "words"),
    [
        ((64, 256), (48, 1), "no whole blocks"),
        ((64,), (1, 1), "no whole blocks"),
        ((64,), (0,), "no whole blocks"),
        ((64,), (), "no whole blocks"),
    ],
)
def test_a_grain_that_does_not_fit(
    shape: tuple[int, ...], grain: tuple[int, ...], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        monotile.sparse(torch.zeros(shape), grain)


def test_bounds_are_of_axes_that_are_there() -> None:
    x, ends = expr.Tensor("x", (4, 32), DType.F32), expr.Tensor("ends", (2,), DType.I64)
    made = ir.compute(
        expr.Tensor("y", (4,), DType.F32),
        lambda i, r: expr.Load(x, (i, r)),
        reduce=(32,),
        combiner="sum",
    )
    (i,), (r,) = made.axes, made.reduce

    def with_bound(*at: ir.At) -> Program:
        return Program(
            (x, ends),
            (),
            (msgspec.structs.replace(made, live=(Live(r, None, ends, at),)),),
            (made.out,),
        )

    verify(with_bound(ir.At(i, 2)))
    values = {"x": np.ones((4, 32), np.float32), "ends": np.array([3, 0])}
    (found,) = evaluate(with_bound(ir.At(i, 2)), values)
    np.testing.assert_array_equal(found, [3, 3, 0, 0])
    for wrong in ((), (ir.At(i),), (ir.At(i, 5),), (ir.At(r, 16),)):
        with pytest.raises(monotile.VerificationError):
            verify(with_bound(*wrong))


def test_large_products_alone_end_by_rows() -> None:
    """The scheduler takes the bounds of runs where tiles are long enough, the widest elsewhere."""
    target = cuda_target("sm_90a")
    for model, rows in ((Rows(), True), (Blocks((32, 32)), True)):
        name = "rows" if isinstance(model, Rows) else "blocks"
        _, args = inputs(name)
        program, _ = transform(captured(model, args)[0], {}, Options())
        found = bound(program, target, Context.of(program, target))
        by_rows = [
            x for s in statements(found.body) if isinstance(s, Compute) for x in s.live if x.at
        ]
        assert bool(by_rows) == rows
