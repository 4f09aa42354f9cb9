"""Structures made from their leaves as PyTorch makes them."""

import collections
from collections.abc import Iterable

import torch.utils._pytree as pytree
from hypothesis import given
from hypothesis import strategies as st

from monotile.runtime.trees import constructor

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
