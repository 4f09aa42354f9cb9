"""How operands of products are read, and which blocks they may be cut into."""

from dataclasses import replace

import msgspec
import pytest

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Expr, Load, Select, cast, const, idx
from monotile.ir.program import compute
from monotile.kernels.common.operand import Operand
from monotile.kernels.common.product import Product, product, with_sides
from monotile.kernels.matmul.blocks import MOST_HELD, blocks, scratch_bytes, within_run
from monotile.kernels.matmul.problem import Size
from monotile.targets.cpu.target import cpu_target
from tests.schedule import programs as p

F16, F32 = DType.F16, DType.F32


def half(a: Expr, b: Expr) -> Expr:
    return Binary("mul", cast(a, F32), cast(b, F32))


def found(turned: bool, dtype: DType = F16) -> Product:
    a, b = p.tensor("a", 64, 128, dtype=dtype), p.tensor("b", 128, 128, dtype=dtype)
    out = product(p.matmul("y", a, b, turned=turned), {}, p.H100)
    assert out is not None
    return out


@pytest.mark.parametrize(("turned", "major"), [(True, "k"), (False, "mn")])
def test_the_direction_of_neighbours(turned: bool, major: str) -> None:
    assert found(turned).left == Operand("k", 8, "async")
    assert found(turned).right == Operand("k" if turned else "mn", 8, "async")
    assert found(turned).right.major == major
    assert found(turned, F32).right.vector == 4


def test_axes_fall_into_batch_rows_and_columns() -> None:
    a, b = p.tensor("a", 3, 16, 32, dtype=F16), p.tensor("b", 3, 32, 24, dtype=F16)
    c = compute(
        p.tensor("y", 3, 16, 24, dtype=F16),
        lambda g, i, j, k: half(Load(a, (g, i, k)), Load(b, (g, k, j))),
        reduce=(32,),
        combiner="sum",
    )
    out = product(c, {}, p.H100)
    assert out is not None
    assert (out.batch, out.m, out.n, out.k) == ((0,), (1,), (2,), (0,))


def test_padding_and_gathers_are_evaluated_one_by_one() -> None:
    x, w = p.tensor("x", 16, 10, dtype=F16), p.tensor("w", 16, 48, dtype=F16)
    table, ids = p.tensor("table", 50, 48, dtype=F16), p.tensor("ids", 10, dtype=p.I64)

    def padded(i: Expr, j: Expr, c: Expr, t: Expr) -> Expr:
        at = Binary("sub", Binary("add", i, t), idx(1))
        inside = Binary("and", Binary("le", idx(0), at), Binary("lt", at, idx(10)))
        image = Select(inside, Load(x, (c, at)), const(0.0, F16))
        return half(image, Load(w, (j, Binary("add", Binary("mul", c, idx(3)), t))))

    conv = compute(p.tensor("y", 10, 16, dtype=F16), padded, reduce=(16, 3), combiner="sum")
    out = product(conv, {}, p.H100)
    assert out is not None
    assert out.left.copy == "element"

    looked_up = compute(
        p.tensor("z", 10, 16, dtype=F16),
        lambda i, j, k: half(Load(table, (Load(ids, (i,)), k)), Load(w, (j, k))),
        reduce=(48,),
        combiner="sum",
    )
    out = product(looked_up, {}, p.H100)
    assert out is not None
    assert out.left.copy == "element"


def test_a_filter_is_read_in_vectors_and_an_image_by_neighbours_in_memory() -> None:
    x, w = p.tensor("x", 16, 10, 10, dtype=F16), p.tensor("w", 24, 16, 3, 3, dtype=F16)
    c = compute(
        p.tensor("y", 24, 8, 8, dtype=F16),
        lambda o, i, j, c, s, t: half(
            Load(w, (o, c, s, t)),
            Load(x, (c, Binary("add", i, s), Binary("add", j, t))),
        ),
        reduce=(16, 3, 3),
        combiner="sum",
    )
    out = product(c, {}, p.H100)
    assert out is not None
    assert {out.left, out.right} == {Operand("k", 8, "async"), Operand("mn", 1, "element")}


def test_fewer_axes_on_a_side_change_how_it_is_read() -> None:
    """A side that loses its innermost axis, along which an operand is contiguous, has no vectors along it."""
    x, w = p.tensor("x", 32, 16, 28, dtype=F16), p.tensor("w", 24, 16, dtype=F16)
    c = compute(
        p.tensor("y", 32, 24, 28, dtype=F16),
        lambda n, o, j, k: half(Load(w, (o, k)), Load(x, (n, k, j))),
        reduce=(16,),
        combiner="sum",
    )
    whole = product(c, {}, p.H100)
    assert whole is not None
    assert {whole.m, whole.n} == {(1,), (0, 2)}
    images = whole.right if whole.n == (0, 2) else whole.left
    assert images == Operand("mn", 4, "async")
    fewer = with_sides(whole, c, ((1,), (0,)), p.H100, frozenset())
    assert fewer.right.vector == 1


def test_what_the_stage_holds_is_not_copied_from_global_memory() -> None:
    a, b = p.tensor("a", 64, 128, dtype=F16), p.tensor("b", 128, 128, dtype=F16)
    out = product(p.matmul("y", a, b), {}, p.H100, on_chip=frozenset({"a"}))
    assert out is not None
    assert (out.left.copy, out.right.copy) == ("element", "async")


def test_axes_that_choose_a_part_of_a_weight_are_batches() -> None:
    x, w = p.tensor("x", 16, 32, dtype=F16), p.tensor("w", 4, 32, 24, dtype=F16)
    c = compute(
        p.tensor("y", 4, 16, 24, dtype=F16),
        lambda g, i, j, k: half(Load(x, (i, k)), Load(w, (g, k, j))),
        reduce=(32,),
        combiner="sum",
    )
    free, fixed = product(c, {}, p.H100), product(c, {"w": 1}, p.H100)
    assert free is not None
    assert fixed is not None
    assert (free.n, free.batch) == ((0, 2), ())
    assert (fixed.n, fixed.batch) == ((2,), (0,))


def test_few_rows_or_other_types_are_no_product() -> None:
    a, b = p.tensor("a", 2, 64, dtype=F16), p.tensor("b", 64, 64, dtype=F16)
    assert product(p.matmul("y", a, b), {}, p.H100) is None
    i, k = p.tensor("i", 16, 8, dtype=p.I64), p.tensor("k", 8, 16, dtype=p.I64)
    whole = compute(
        p.tensor("y", 16, 16, dtype=p.I64),
        lambda r, c, s: Binary("mul", Load(i, (r, s)), Load(k, (s, c))),
        reduce=(8,),
        combiner="sum",
    )
    assert product(whole, {}, p.H100) is None


@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("sides", [(128, 768, 768), (16, 24, 64), (1000, 16, 2048)])
def test_blocks_suit_the_instruction(dtype: DType, sides: tuple[int, int, int]) -> None:
    m, n, k = sides
    kinds = {"mma", "wgmma"} if dtype is F16 else {"mma", "fma"}
    several = list(blocks(found(False, dtype), Size(m, n, k), p.H100))
    assert several
    for b in several:
        assert b.instruction in kinds
        assert b.warps_m * b.warps_n * b.slices * b.teams * p.H100.warp == p.H100.threads
        assert b.block_m % b.warps_m == 0
        assert b.block_n % b.warps_n == 0
        assert b.depth >= 2
        assert scratch_bytes(b, dtype.itemsize, p.H100) > 0
        if b.instruction == "mma":
            assert b.block_m // b.warps_m % 16 == 0
            assert b.block_n // b.warps_n % 8 == 0
            assert b.block_k * dtype.itemsize % 32 == 0
            assert b.passes == (1 if dtype is F16 else 3)
        if b.instruction == "wgmma":
            assert b.block_m % 64 == 0
            assert b.block_n % 64 == 0  # the right side lies along n: in blocks of 128 bytes


def test_axis_names_do_not_matter() -> None:
    a, b = p.tensor("a", 64, 128, dtype=F16), p.tensor("b", 128, 128, dtype=F16)
    c = p.matmul("y", a, b)
    assert c.reduce == (Axis("r0", 128),)
    assert product(c, {}, p.H100) == found(False)


def test_a_tile_lies_within_a_run() -> None:
    cpu, gpu = cpu_target(workers=2), p.H100
    assert [within_run(64, grain, cpu) for grain in (0, 48, 64, 65, 96)] == [64, 48, 64, 65, 96]
    assert [within_run(64, grain, gpu) for grain in (0, 48, 64, 65, 96)] == [64, 48, 64, 13, 48]


def test_evaluated_operands_are_few_a_thread() -> None:
    """Each value has its own code, in registers: a chunk that threads evaluate is small."""
    wide = msgspec.structs.replace(found(False).right, copy="element", vector=1)
    for c in blocks(replace(found(False), right=wide), Size(64, 4096, 512), p.H100):
        assert c.block_n * c.block_k <= MOST_HELD * c.warps_m * c.warps_n * 32


def test_few_rows_are_for_dot_products_but_in_runs() -> None:
    assert not list(blocks(found(False), Size(4, 4096, 512), p.H100))
    assert {
        c.block_m for c in blocks(replace(found(False), grain_m=4), Size(4, 4096, 512), p.H100)
    } == {16}


def test_much_of_few_rows_is_for_tensor_cores() -> None:
    assert {c.block_m for c in blocks(found(False), Size(8, 4096, 4096), p.H100)} == {16}
