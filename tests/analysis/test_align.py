"""How the statements of one group become those of the next."""

from collections.abc import Sequence

from monotile.analysis.align import Around, Carried, Local, Members, Progression, Same, Table, align
from monotile.analysis.skeleton import Skeleton, skeleton
from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Load, Tensor, idx
from monotile.ir.program import Compute, compute

SHAPE = (2, 3)


def vector(name: str) -> Tensor:
    return Tensor(name, SHAPE, DType.F32)


def both(out: str, a: str, b: str) -> Compute:
    return compute(vector(out), lambda *i: Binary("add", Load(vector(a), i), Load(vector(b), i)))


def row(out: str, source: Tensor, k: int) -> Compute:
    return compute(vector(out), lambda *i: Load(source, (idx(k), *i)))


def parts(*groups: Sequence[Compute]) -> list[list[Skeleton]]:
    return [[skeleton(s) for s in g] for g in groups]


def test_every_class() -> None:
    groups = [(both(f"a{k}", f"y{k - 1}", f"w{k}"), both(f"y{k}", f"a{k}", "x")) for k in range(3)]
    (found,) = align(parts(*groups), frozenset({"w0", "w1", "w2"}))
    assert (found.first, found.count) == (0, 3)
    table = Table((vector("w0"), vector("w1"), vector("w2")))
    assert found.slots == (Carried(1, vector("y-1")), table, Local(0), Same(vector("x")))


def test_literals_step_evenly() -> None:
    xs = Tensor("xs", (9, *SHAPE), DType.F32)
    even = [(row(f"a{k}", xs, 2 * k + 1),) for k in range(3)]
    (found,) = align(parts(*even), frozenset())
    assert found.constants[0] == Progression(1, 2)
    uneven = [(row(f"a{k}", xs, k * k),) for k in range(4)]
    assert [(a.first, a.count) for a in align(parts(*uneven), frozenset())] == [(0, 2), (2, 2)]


def test_a_chain_that_starts_anew_is_two_runs() -> None:
    before = ["s", "a0", "a1", "s", "a3", "a4"]
    groups = [(both(f"a{k}", b, "x"),) for k, b in enumerate(before)]
    found = align(parts(*groups), frozenset())
    assert [(a.first, a.count) for a in found] == [(0, 3), (3, 3)]


def test_a_value_of_the_group_before_the_last_does_not_align() -> None:
    before = ["s", "s", "a0", "a1", "a2"]
    groups = [(both(f"a{k}", b, "x"),) for k, b in enumerate(before)]
    assert all(a.count < 4 for a in align(parts(*groups), frozenset()))


def test_carried_values_of_the_loop_around() -> None:
    groups = [(both(f"h{k}", f"p{k}", "x"),) for k in range(3)]
    around = Around({f"p{k}": k for k in range(3)}, ("h0", "h1", "h2"))
    (found,) = align(parts(*groups), frozenset(), around)
    assert found.slots[0] == Members((0, 1, 2), 0)
    assert not align(parts(*groups), frozenset())
