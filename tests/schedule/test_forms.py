"""Groups that are equal but for names are cut once."""

from monotile.ir.program import Program
from monotile.kernels.draft import Context
from monotile.kernels.group import Group, single
from monotile.schedule.forms import form
from monotile.schedule.groups import unite
from monotile.schedule.tiles import cut
from monotile.targets.cuda.target import cuda_target
from tests.schedule import programs as p

CUDA = cuda_target("sm_90a")


def rows(name: str, columns: int = 64) -> Group:
    """exp(x), and its rows' sums, by which it is divided."""
    x, e = p.tensor(f"{name}_x", 32, columns), f"{name}_e"
    first = p.pointwise(e, x)
    second = p.total(f"{name}_s", first.out)
    both = unite(single(first), single(second))
    assert both is not None
    whole = unite(both, single(p.over_rows(f"{name}_y", first.out, second.out)))
    assert whole is not None
    return whole


def context() -> Context:
    return Context.of(Program((), (), (), ()), CUDA)


def test_equal_groups_have_one_form() -> None:
    known = context()
    a, b, other = rows("a"), rows("b"), rows("c", 128)
    assert form(a, known).first is form(b, known).first is a
    assert form(b, known).names == {f"a_{n}": f"b_{n}" for n in "xesy"}
    assert form(other, known).first is other


def test_tables_and_streamed_weights_are_part_of_a_form() -> None:
    a, b = rows("a"), rows("b")
    for known in (Context({"b_x": 1}, CUDA), Context({}, CUDA, streamed=frozenset({"b_x"}))):
        assert form(a, known).first is a
        assert form(b, known).first is b


def test_a_draft_of_the_form_is_the_groups_own() -> None:
    known = context()
    a, b = rows("a"), rows("b")
    assert cut(a, known) is not None
    found, alone = cut(b, known), cut(b, context())
    assert found == alone
    assert found is not None
    assert found.group is b
    assert cut(b, known) is found
