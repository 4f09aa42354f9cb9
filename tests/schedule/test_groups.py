"""Which Computes share a stage."""

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Expr, Load, Select, Tensor, Unary, add, const, idx
from monotile.ir.program import Compute, Scatter, Statement, compute
from monotile.schedule.groups import Group, Node, fuse_epilogues, merge, single, singles, unite
from tests.schedule import programs as p

X = p.tensor("x", 4, 8)


def names(nodes: list[Node]) -> list[list[list[str]]]:
    return [[[s.out.name for s in step] for step in n.steps] for n in nodes if isinstance(n, Group)]


def grouped(*body: Statement) -> list[list[list[str]]]:
    """Everything that may share a stage in one, whatever it costs."""
    return names(merge(fuse_epilogues(singles(body)), unite))


def test_what_follows_element_by_element_joins_the_step() -> None:
    y = p.pointwise("y", X)
    z = p.plus("z", y.out, X)
    assert names(fuse_epilogues(singles([y, z]))) == [[["y", "z"]]]


def test_what_follows_a_reduction_joins_it() -> None:
    sums = p.total("sums", X)
    roots = p.pointwise("roots", sums.out, "sqrt")
    assert names(fuse_epilogues(singles([sums, roots]))) == [[["sums", "roots"]]]


def test_a_neighbours_element_is_not_ones_own() -> None:
    y = p.pointwise("y", X)
    turned = compute(p.tensor("t", 4, 8), lambda i, j: Load(y.out, (i, Binary("sub", idx(7), j))))
    assert names(fuse_epilogues(singles([y, turned]))) == [[["y"]], [["t"]]]


def test_a_reader_of_both_orders_does_not_follow() -> None:
    y = p.pointwise("y", p.tensor("x", 4, 4))
    both = compute(
        p.tensor("t", 4, 4), lambda i, j: Binary("add", Load(y.out, (i, j)), Load(y.out, (j, i)))
    )
    assert names(fuse_epilogues(singles([y, both]))) == [[["y"]], [["t"]]]


def test_axes_of_one_element_may_be_indexed_by_zero() -> None:
    y = p.pointwise("y", p.tensor("x", 1, 8))
    z = compute(p.tensor("z", 1, 8), lambda _, j: Load(y.out, (idx(0), j)))
    assert names(fuse_epilogues(singles([y, z]))) == [[["y", "z"]]]


def test_softmax_is_one_group_cut_along_its_rows() -> None:
    body = [s for s in p.softmax(X) if isinstance(s, Compute)]
    (group,) = merge(fuse_epilogues(singles(body)), unite)
    assert isinstance(group, Group)
    (row,) = group.rows
    assert row == tuple((s.out.name, 0, 0) for s in body)


def test_a_reduction_over_everything_leaves_no_rows() -> None:
    sums = p.total("sums", p.tensor("v", 8))
    back = compute(p.tensor("back", 8), lambda i: Load(sums.out, ()))
    united = unite(single(sums), single(back))
    assert united is not None
    assert united.rows == ()


def test_a_transposed_reader_agrees_on_other_rows() -> None:
    y = p.total("y", p.tensor("c", 4, 8, 3))
    t = compute(
        p.tensor("t", 8),
        lambda j, r: Load(y.out, (r, j)),
        reduce=(4,),
        combiner="sum",
    )
    united = unite(single(y), single(t))
    assert united is not None
    assert united.rows == ((("y", 1, 0), ("t", 0, 0)),)


def test_no_stage_waits_for_itself() -> None:
    """first -> scattered -> last: first and last cannot be one stage."""
    y = p.pointwise("y", X)
    changed = p.update()
    (copy, scatter, _) = changed.body
    i = (Axis("i0", 6), Axis("i1", 4))
    assert isinstance(copy, Compute)
    last = Compute(
        p.tensor("last", 6, 4), i, (), None, Binary("add", Load(copy.out, i), Load(scatter.out, i))
    )
    assert grouped(copy, scatter, last) == [[["x_base"]], [["new"]], [["last"]]]
    assert grouped(y, p.pointwise("z", y.out), p.plus("s", y.out, X)) == [[["y", "z", "s"]]]


def test_merging_keeps_an_order_in_which_everything_is_known() -> None:
    a = p.pointwise("a", X)
    loop_input = p.total("b", X)
    c = p.over_rows("c", X, loop_input.out)
    d = p.plus("d", a.out, c.out)
    known = {"x"}
    for group in merge(fuse_epilogues(singles([a, loop_input, c, d])), unite):
        assert isinstance(group, Group)
        assert group.reads <= known
        known |= group.tensors


def test_rows_of_other_lengths_are_not_shared() -> None:
    """A reader with more rows, zeros beyond the last of its producer's, needs tasks of its own."""
    y = p.pointwise("y", p.tensor("x", 1, 8))
    longer = compute(
        p.tensor("z", 2, 8),
        lambda i, j: Select(Binary("lt", i, idx(1)), Load(y.out, (i, j)), const(0.0, DType.F32)),
    )
    (group,) = merge(fuse_epilogues(singles([y, longer])), unite)
    assert isinstance(group, Group)
    assert group.rows == ((("y", 1, 0), ("z", 1, 0)),)


def test_a_row_of_ones_own_in_front() -> None:
    """A wavefront's states: row 0 is where it starts, row i + 1 follows from row i of what is summed."""
    y = p.total("y", p.tensor("c", 4, 8, 3))
    start = p.tensor("start", 8)

    def body(i: Axis, j: Axis) -> Select:
        before = Load(y.out, (Binary("sub", i, idx(1)), j))
        return Select(Binary("lt", i, idx(1)), Load(start, (j,)), before)

    rows = compute(p.tensor("rows", 5, 8), body)
    after = compute(p.tensor("after", 4, 8), lambda i, j: Load(rows.out, (add(i, idx(1)), j)))
    united = unite(single(y), single(rows), leads=True)
    assert united is not None
    assert united.rows == ((("y", 0, 0), ("rows", 0, 1)), (("y", 1, 0), ("rows", 1, 0)))
    both = unite(united, single(after), leads=True)
    assert both is not None
    assert both.rows[0] == (("y", 0, 0), ("rows", 0, 1), ("after", 0, 0))
    without = unite(single(y), single(rows))
    assert without is not None
    assert without.rows == ((("y", 1, 0), ("rows", 1, 0)),)


def row_of(cache: Tensor, made: Compute, place: Expr | None = None) -> Scatter:
    """What `made` [4, 8] has, written into row 2 of `cache` [4, 5, 8], or where `place` says."""
    out, axes = Tensor(f"{cache.name}_new", cache.shape, cache.dtype), made.axes
    index = (axes[0], place or idx(2), axes[1])
    return Scatter(out, cache, axes, index, Load(made.out, axes), None)


def test_a_scatter_of_other_elements_each_is_a_step() -> None:
    cache, other = p.tensor("cache", 4, 5, 8), p.tensor("other", 4, 5, 8)
    y = p.total("y", p.tensor("c", 4, 8, 3))
    first, second = row_of(cache, y), row_of(other, y)
    assert grouped(y, first, second) == [[["y"], ["cache_new"], ["other_new"]]]
    united = unite(single(y), single(first))
    assert united is not None
    assert united.rows == tuple((("y", k, 0), ("cache_new", k, 0)) for k in (0, 1))


def test_a_scatter_stays_apart_from_who_uses_its_memory() -> None:
    cache = p.tensor("cache", 4, 5, 8)
    y = p.total("y", p.tensor("c", 4, 8, 3))
    s = row_of(cache, y)
    reader = compute(p.tensor("z", 4, 8), lambda i, j: Load(s.out, (i, idx(1), j)))
    assert grouped(y, s, reader) == [[["y"], ["cache_new"]], [["z"]]]
    old = compute(
        p.tensor("old", 4, 8),
        lambda i, j: Binary("add", Load(y.out, (i, j)), Load(cache, (i, idx(1), j))),
    )
    assert unite(single(old), single(row_of(cache, old))) is None
    own = compute(p.tensor("own", 4, 8), lambda i, j: Unary("neg", Load(cache, (i, idx(2), j))))
    assert unite(single(own), single(row_of(cache, own))) is not None
    same = Scatter(s.out, cache, s.axes, (idx(0), idx(2), s.axes[1]), s.value, None)
    assert unite(single(y), single(same)) is None  # rows that meet
