"""Restores the state of a model, and of its code, after a trace.

A trace runs the model's code on tensors without elements. If the code keeps them for its next call (in a dictionary, in an object, in a global name, in
`functools.cache`), that call and the next trace would fail.
"""

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import (
    _lru_cache_wrapper as Cached,  # pyright: ignore[reportPrivateUsage] # it has no other name
)
from operator import is_
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

Container = dict[Any, Any] | list[Any] | set[Any] | deque[Any]
# Subclasses may compute their items: one of transformers imports a model for each.
_CONTAINERS = frozenset({dict, OrderedDict, defaultdict, Counter, list, set, deque})
_TRACED = (FakeTensor, FunctionalTensor, torch.SymInt, torch.SymFloat, torch.SymBool)
_NOT_OF_USERS = frozenset({*sys.stdlib_module_names, "torch", "monotile"})


@contextmanager
def state_restored(model: torch.nn.Module) -> Generator[None]:
    """Restores attributes, containers, and objects of other classes than PyTorch's and Python's own that the model holds. Removes traced values from global
    names, classes and function caches in the packages of its classes."""
    held = [(x, contents_of(x)) for x in containers_of([model])]
    named = [(owner, dict(vars(owner))) for owner in _owners(modules_of(model))]
    # Other modules are not inspected: reading an attribute may load a lazily loaded module.
    values = [
        x.__func__ if isinstance(x, classmethod | staticmethod) else x
        for _, before in named
        for x in before.values()
    ]
    tables = [
        (x, contents_of(x)) for x in containers_of(x for x in values if type(x) in _CONTAINERS)
    ]
    caches = [(x, x.cache_info().misses) for x in values if isinstance(x, Cached)]
    try:
        yield
    finally:
        for x, before in held:
            put_back(x, before)
        for x, before in tables:
            values = x.values() if isinstance(x, dict) else x
            if not is_as(x, before) and any(map(is_traced, values)):
                put_back(x, before)
        for owner, before in named:
            _forget(owner, before)
        for cache, misses in caches:
            if cache.cache_info().misses != misses:
                cache.cache_clear()


def held_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    """The tensors that the model may update in place: buffers and other tensors that it holds, without parameters, each once."""
    found = {
        id(x): x for c in containers_of([model]) for x in (c.values() if isinstance(c, dict) else c)
    }
    return [
        x
        for x in found.values()
        if isinstance(x, torch.Tensor) and not isinstance(x, torch.nn.Parameter)
    ]


def containers_of(roots: Iterable[Any]) -> Iterator[Container]:
    """The containers that `roots` hold, and the attributes of their objects, each once."""
    todo, seen = list(roots), set[int]()
    while todo:
        x = todo.pop()
        if isinstance(x, torch.Tensor | type) or id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, tuple | frozenset):
            todo.extend(_items(x))
        elif type(x) in _CONTAINERS:
            yield x
            todo += x.values() if isinstance(x, dict) else x
        elif isinstance(x, torch.nn.Module) or _package(type(x)) not in _NOT_OF_USERS:
            attributes = getattr(x, "__dict__", None)
            if isinstance(attributes, dict) and not isinstance(x, ModuleType):
                todo.append(attributes)


def _items(x: tuple[Any, ...] | frozenset[Any]) -> Iterator[Any]:
    """The items of a list, whatever length a subclass reports."""
    return tuple.__iter__(x) if isinstance(x, tuple) else frozenset.__iter__(x)


def contents_of(x: Container) -> Container:
    return dict(x) if isinstance(x, dict) else set(x) if isinstance(x, set) else list(x)


def put_back(x: Container, before: Any) -> None:
    if not is_as(x, before):
        x.clear()
        x.extend(before) if isinstance(x, list | deque) else x.update(before)


def is_as(x: Container, before: Any) -> bool:
    """Whether `x` holds the same objects as before, in the same order."""
    if len(x) != len(before):
        return False
    same = not isinstance(x, dict) or all(map(is_, x.values(), before.values()))
    return same and all(map(is_, x, before))


def is_equal(one: Any, other: Any) -> bool:
    """Whether they are the same object, or equal numbers or texts."""
    return one is other or (
        type(one) is type(other) and isinstance(one, int | float | str) and one == other
    )


def _package(kind: Callable[..., Any]) -> str:
    return str(getattr(kind, "__module__", "")).partition(".")[0]


def modules_of(model: torch.nn.Module) -> Iterator[ModuleType]:
    """The modules of the packages that the model's classes, or the function that it is, are from, except for PyTorch's and Python's own."""
    kinds = (kind for m in model.modules() for kind in (type(m), m.forward))
    names = set(map(_package, kinds)) - _NOT_OF_USERS
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in names and isinstance(module, ModuleType):  # pyright: ignore[reportUnnecessaryIsInstance] # others put objects there
            yield module


def _owners(modules: Iterable[ModuleType]) -> Iterator[ModuleType | type]:
    """The modules, and the classes that they define."""
    for module in modules:
        yield module
        for x in list(vars(module).values()):
            if isinstance(x, type) and x.__module__ == module.__name__:
                yield x


def _forget(owner: ModuleType | type, before: dict[str, Any]) -> None:
    """Restores the names of `owner` that now have a traced value and did not before."""
    for name, x in list(vars(owner).items()):
        if x is before.get(name) or not is_traced(x):
            continue
        if name in before:
            setattr(owner, name, before[name])
        else:
            delattr(owner, name)


def is_traced(x: Any) -> bool:
    """Whether a value, or an item of it, is one of a trace."""
    return any(isinstance(leaf, _TRACED) for leaf in pytree.tree_leaves(x))
