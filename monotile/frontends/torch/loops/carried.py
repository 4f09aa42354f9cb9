"""Finds the loop-carried values: the names, list items, dictionary entries and attributes that the body of a loop changes.

A place is an entry of a container: of the dictionary of local names, of a list or dictionary, or an attribute of an object.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import CellType, FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monotile.frontends.torch.branches.selection import MISSING
from monotile.frontends.torch.loops.stacked import Stacked, raw_items
from monotile.frontends.torch.loops.tensor_numbers import number_type
from monotile.frontends.torch.tracing.containers import register_dataclasses
from monotile.frontends.torch.tracing.restored_state import containers_of, contents_of, put_back

_CONSTANT = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
_EMPTY = CellType()


@dataclass
class Place:
    """The entry `key` of the container `holder`. before, after: its values around an iteration."""

    holder: Any
    key: Any
    before: Any
    after: Any

    @property
    def name(self) -> str:
        return self.key if isinstance(self.key, str) else f"the entry [{self.key!r}] of a {type(self.holder).__name__}"  # fmt: skip

    @property
    def at(self) -> tuple[int, Any]:
        return id(self.holder), self.key

    def put(self, value: Any) -> None:
        if value is not MISSING:
            self.holder[self.key] = value
        elif isinstance(self.holder, dict):
            self.holder.pop(self.key, None)


@dataclass
class ListGrowth:
    """A list to which an iteration appends `new`. places: the entries that refer to it."""

    whole: list[Any]
    before: list[Any]
    new: list[Any]
    places: list[Place] = field(default_factory=list[Place])


class Snapshot:
    """All reachable containers before an iteration. names: the loop's dictionary of local names."""

    def __init__(self, names: dict[str, Any]) -> None:
        lists = (x for x in names.values() if isinstance(x, Stacked))
        held = {id(x): x for x in (names, *containers_of([names, *_closed(names)]), *lists)}
        self._names = names
        self._before: list[tuple[Any, Any]] = [(x, _contents(x)) for x in held.values()]

    def has_iterator(self) -> bool:
        """Whether a container holds an iterator: an iteration may consume items of it."""
        return any(isinstance(x, Iterator) for _, held in self._before for _, x in _pairs(held))

    def restore(self) -> None:
        """Undoes all changes."""
        for x, before in self._before:
            if isinstance(x, Stacked):
                x.clear()
                x.extend(before)
            else:
                put_back(x, before)

    def changed(self, names: Mapping[str, Any]) -> tuple[list[Place], list[ListGrowth]]:
        """The changes of an iteration that ends with `names`. Raises KeyError if it removed an entry."""
        found, grown = list[Place](), dict[int, ListGrowth]()
        for x, before in self._before:
            after: Any = _contents(x)
            if x is self._names:
                after = {n: names.get(n, MISSING) for n in self._names}
            if isinstance(x, list) and len(after) > len(before):
                grown[id(x)] = ListGrowth(x, before, after[len(before) :])
                if before and not _begins(after, before) and _begins(after[::-1], before[::-1]):
                    continue  # inserted at the front
            for place in _changes(x, before, after):
                old, new = place.before, place.after
                if isinstance(old, list) and isinstance(new, list) and _begins(new, old):
                    grown[id(old)] = ListGrowth(
                        old, raw_items(old), raw_items(new)[len(raw_items(old)) :]
                    )
                else:
                    found.append(place)
        for x, before in self._before:
            for k, value in _pairs(before):
                if growth := grown.get(id(value)):
                    growth.places.append(Place(x, k, value, value))
        return found, list(grown.values())


def _closed(names: Mapping[str, Any]) -> list[Any]:
    """The closure variables of the functions among them."""
    cells = (c for f in names.values() if isinstance(f, FunctionType) for c in f.__closure__ or ())
    return [c.cell_contents for c in cells if c != _EMPTY]


def _contents(x: Any) -> Any:
    return raw_items(x) if isinstance(x, list) else contents_of(x)


def _pairs(entries: Any) -> Iterator[tuple[Any, Any]]:
    return iter(entries.items()) if isinstance(entries, dict) else enumerate(entries)


def _changes(x: Any, before: Any, after: Any) -> Iterator[Place]:
    if isinstance(before, dict):
        for k in {**before, **after}:
            old, new = before.get(k, MISSING), after.get(k, MISSING)
            if not is_same(old, new):
                yield Place(x, k, old, new)
        return
    if len(after) < len(before) or (not isinstance(x, list) and list(before) != list(after)):
        raise KeyError
    for k, (old, new) in enumerate(zip(before, after, strict=False)):
        if not is_same(old, new):
            yield Place(x, k, old, new)


def _begins(new: list[Any], old: list[Any]) -> bool:
    lists = raw_items(new), raw_items(old)
    return len(lists[0]) > len(lists[1]) and all(x is y for x, y in zip(*lists, strict=False))


def is_same(x: Any, y: Any) -> bool:
    """Whether both are one object, or equal containers of the same objects."""
    if x is y or x is MISSING or y is MISSING:
        return x is y
    register_dataclasses((x, y))
    (left, form), (right, other) = pytree.tree_flatten(x), pytree.tree_flatten(y)
    return form == other and all(map(is_same_leaf, left, right))


def is_same_leaf(x: Any, y: Any) -> bool:
    if isinstance(x, torch.SymInt) and isinstance(y, torch.SymInt):
        return x.node.expr == y.node.expr
    return x is y or (isinstance(x, _CONSTANT) and type(x) is type(y) and x == y)


def keeps_type(x: Any, y: Any) -> bool:
    """Whether a leaf may change from `x` to `y` in an iteration: tensors of one type, numbers of one type, or the same value."""
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        return (x.shape, x.dtype, x.device) == (y.shape, y.dtype, y.device)
    types = number_type(x), number_type(y)
    return is_same_leaf(x, y) or (types[0] is not None and types[0] is types[1])


def describe_type(x: Any) -> str:
    """The type of a value, for messages."""
    if x is MISSING:
        return "not bound"
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype).removeprefix('torch.')}{[*x.shape]}"
    if isinstance(x, list | tuple):
        return f"({', '.join(map(describe_type, x))})"
    return str(x) if isinstance(x, (*_CONSTANT, torch.SymInt)) else f"a {type(x).__name__}"
