"""Structures made from their leaves as PyTorch makes them."""

import collections
from collections import OrderedDict
from collections.abc import Iterable

import pytest
import torch
import torch.utils._pytree as pytree
from hypothesis import given
from hypothesis import strategies as st

import monotile
from monotile.runtime.pytrees import constructor

Pair = collections.namedtuple("Pair", "a b")
LEAVES = st.integers() | st.none()


def nested(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    some = st.lists(inner, max_size=3)

    def pair(x: Iterable[object]) -> object:
        return Pair(*x)

    return st.one_of(
        some,
        some.map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.tuples(inner, inner).map(pair),
        some.map(collections.deque),
    )


@given(st.recursive(LEAVES, nested, max_leaves=12))
def test_there_and_back(structure: object) -> None:
    leaves, tree = pytree.tree_flatten(structure)
    rest = iter([*leaves, "one too many"])
    found = constructor(tree)(rest)
    assert found == structure
    assert type(found) is type(structure)
    assert list(rest) == ["one too many"]


class Output(OrderedDict[str, object]):
    """As Hugging Face's: a dict in order whose items are attributes too."""

    made = 0

    def __init__(self, first: object = None, second: object = None, more: object = None) -> None:
        super().__init__()
        Output.made += 1
        for name, value in (("first", first), ("second", second), ("more", more)):
            object.__setattr__(self, name, value)
            if value is not None:
                self[name] = value


class Counted(Output):
    """Holds more than its parts."""

    def __init__(self, **parts: object) -> None:
        super().__init__(**parts)
        self.count = len(parts)


@pytest.mark.parametrize("kind", [Output, Counted])
def test_a_dict_in_order_is_made_without_its_init_where_that_is_the_same(
    kind: type[Output],
) -> None:
    def flatten(x: Output) -> tuple[list[object], list[str]]:
        return list(x.values()), list(x)

    def unflatten(values: Iterable[object], names: list[str]) -> Output:
        return kind(**dict(zip(names, values, strict=True)))

    if kind not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(kind, flatten, unflatten)
    leaves = [torch.ones(1), torch.zeros(2)]
    tree = pytree.tree_structure(kind(first=leaves[0], more=leaves[1]))
    make, before = constructor(tree), Output.made
    got = make(iter(leaves))
    assert type(got) is kind
    assert list(got.items()) == [("first", leaves[0]), ("more", leaves[1])]
    assert vars(got) == vars(kind(first=leaves[0], more=leaves[1]))
    assert (Output.made - before == 1) == (kind is Output)


class Pairs:
    def __init__(self, *of: torch.Tensor) -> None:
        self.of = of


def test_a_container_without_names_of_its_children() -> None:
    if Pairs not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(Pairs, lambda x: (list(x.of), None), lambda x, _: Pairs(*x))

    def f(x: Pairs) -> Pairs:
        return Pairs(x.of[0] + x.of[1], x.of[0])

    x = Pairs(torch.randn(3), torch.randn(3))
    found = monotile.compile(f, (x,), target="cpu")(x)
    torch.testing.assert_close(found.of, f(x).of)
