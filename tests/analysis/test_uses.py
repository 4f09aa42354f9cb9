"""Copies of rows, and how often tensors are referred to."""

from monotile.analysis.rows import copied_row
from monotile.analysis.uses import mentions, references
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Expr, Load, Tensor, const, idx
from monotile.ir.program import Carry, Compute, Loop, Program, Scatter, Stack, compute

F32 = DType.F32
WHOLE, OUT = Tensor("whole", (3, 4, 1), F32), Tensor("out", (4, 1), F32)


def read(*index: Expr) -> Compute:
    i, j = Axis("i0", 4), Axis("i1", 1)
    return Compute(OUT, (i, j), (), None, Load(WHOLE, index or (idx(2), i, j)))


def test_a_copy_of_a_row() -> None:
    i, j, layer = Axis("i0", 4), Axis("i1", 1), Axis("l", 3)
    assert copied_row(read()) == (WHOLE, (idx(2),))
    assert copied_row(read(layer, i, idx(0))) == (WHOLE, (layer,))  # the only index of an axis
    single = Compute(Tensor("out", (1,), F32), (j,), (), None, Load(WHOLE, (layer, idx(1), j)))
    assert copied_row(single) == (WHOLE, (layer, idx(1)))


def test_what_is_no_copy_of_a_row() -> None:
    i, j = Axis("i0", 4), Axis("i1", 1)
    turned = read(idx(2), Binary("sub", idx(3), i), j)
    assert copied_row(turned) is None
    assert copied_row(compute(OUT, lambda *at: Load(OUT, at))) is None  # the whole of it
    doubled = compute(OUT, lambda *at: Binary("add", Load(WHOLE, (idx(0), *at)), const(1.0, F32)))
    assert copied_row(doubled) is None
    part = compute(Tensor("out", (2, 1), F32), lambda *at: Load(WHOLE, (idx(0), *at)))
    assert copied_row(part) is None
    narrow = compute(Tensor("out", (4, 1), DType.F16), lambda *at: Load(WHOLE, (idx(0), *at)))
    assert copied_row(narrow) is None


def test_references_inside_a_loop() -> None:
    layer, i = Axis("l", 2), Axis("i0", 4)
    x, old, new, end, every = (Tensor(n, (4,), F32) for n in ("x", "old", "new", "end", "every"))
    twice = Binary("add", Load(x, (i,)), Load(x, (i,)))
    step = Scatter(new, old, (i,), (i,), twice, None)
    stack = Stack(new, Tensor("every", (2, 4), F32))
    go = Tensor("go", (), DType.BOOL)
    loop = Loop(layer, (Carry(x, old, new, end),), (stack,), (step,), predicate=go)
    whole, loaded = references((loop,))
    assert whole == {"x": 1, "old": 1, "new": 2, "go": 1}
    assert loaded == {"x": 2}
    program = Program((x, go), (), (loop,), (end, every))
    assert mentions(program) == {"x": 3, "old": 1, "new": 2, "go": 1, "end": 1, "every": 1}
