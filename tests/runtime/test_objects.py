"""Results in classes that PyTorch does not take apart."""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn

import monotile
from monotile.runtime.objects import Parts, flatten_objects
from monotile.runtime.pytrees import constructor, same_structure


@dataclass
class Layer:
    keys: torch.Tensor
    dtype: torch.dtype
    seen: list[int]


class Cache:
    kind = "of the class"

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.options = {"layer": Layer, "device": torch.device("cpu"), "window": (1, None)}

    def add(self, keys: torch.Tensor) -> None:
        self.layers.append(Layer(keys, keys.dtype, [len(self.layers)]))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        cache = Cache()
        for linear in self.linears:
            x = torch.tanh(linear(x))
            cache.add(x.unflatten(-1, (2, 2)).transpose(-1, -2))
        return {"x": x, "cache": cache}


def check(found: dict[str, Any], expected: dict[str, Any]) -> None:
    cache = found["cache"]
    assert type(cache) is Cache
    assert vars(cache).keys() == vars(expected["cache"]).keys()
    assert cache.options == expected["cache"].options
    for mine, theirs in zip(cache.layers, expected["cache"].layers, strict=True):
        assert (type(mine), mine.dtype, mine.seen) == (Layer, torch.float32, theirs.seen)
        torch.testing.assert_close(mine.keys, theirs.keys)
    torch.testing.assert_close(found["x"], expected["x"])


def test_a_model_that_returns_an_object(tmp_path: Path) -> None:
    model, x = Model().eval(), torch.randn(2, 4)
    fast = monotile.compile(model, (x,), target="cpu")
    with torch.no_grad():
        expected = model(x)
    first, second = fast(x), fast(x)
    check(first, expected)
    first["cache"].layers[0].seen.append(7)  # of one result alone
    first["cache"].layers[0].keys.zero_()
    check(second, expected)
    check(fast(x), expected)
    fast.save(tmp_path / "model")
    check(monotile.load(tmp_path / "model")(x), expected)


def test_there_and_back() -> None:
    cache = Cache()
    cache.add(torch.ones(2))
    leaves, tree = pytree.tree_flatten(flatten_objects([cache, None]))
    assert len(leaves) == 2
    assert tree == pytree.treespec_loads(pytree.treespec_dumps(tree))
    made, none = constructor(tree)(iter(leaves))  # type: ignore[misc]
    assert (type(made), none) == (Cache, None)
    assert vars(made) == vars(cache)
    assert isinstance(pytree.tree_unflatten(leaves, tree)[0], Parts)


def test_structures_are_compared_without_what_else_objects_hold() -> None:
    def tree(dtype: torch.dtype, count: int = 1) -> pytree.TreeSpec:
        cache = Cache()
        for _ in range(count):
            cache.add(torch.ones(2, dtype=dtype))
        return pytree.tree_structure(flatten_objects((cache, {"a": 1})))

    assert tree(torch.float32) != tree(torch.float64)
    assert same_structure(tree(torch.float32), tree(torch.float64))
    assert not same_structure(tree(torch.float32), tree(torch.float32, 2))


@dataclass(slots=True)
class Slotted:
    x: torch.Tensor


class Listed(list[torch.Tensor]):
    pass


@dataclass
class Round:
    x: torch.Tensor
    parts: list[Any] = field(default_factory=list)


@pytest.mark.parametrize(
    "thing",
    [Slotted(torch.ones(1)), Listed([torch.ones(1)]), functools.partial(abs, torch.ones(1)), Layer],
    ids=lambda x: type(x).__name__,
)
def test_what_is_more_than_its_attributes_stays_whole(thing: object) -> None:
    assert flatten_objects(thing) is thing


def test_a_circle_ends() -> None:
    thing = Round(torch.ones(1))
    thing.parts.append(thing)
    parts = flatten_objects(thing)
    assert isinstance(parts, Parts)
    assert parts.form.names == ("x",)
