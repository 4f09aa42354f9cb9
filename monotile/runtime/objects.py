"""Results that are objects of a library's classes, such as Hugging Face's caches of keys and values, and complex tensors.

PyTorch's exporter flattens only registered containers. An object of a plain Python class is its `__dict__`, as `copy.copy`
sees it: attributes with tensors, and with numbers that a call's sizes decide, are children, all others are fixed.
`flatten_objects` replaces each such object of a tree by a `Parts`, a registered container; `rebuild` makes the object again. A complex tensor is a
`Parts` of its real numbers, with a last dimension of 2.
"""

import copy
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from monotile.wrapped import real_of

_HEAP_TYPE = 1 << 9  # a class defined in Python (CPython's Py_TPFLAGS_HEAPTYPE)
_DECIDED = (torch.Tensor, torch.SymInt, torch.SymFloat)
_SETTLED = (type(None), bool, int, float, str, type, torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class Form:
    """The attributes of an object. names: those whose values a call computes. fixed: the others, with their values."""

    type: type
    names: tuple[str, ...]
    fixed: dict[str, Any]


class Complex:
    """The class of a complex tensor in a `Form`."""


@dataclass(frozen=True, slots=True)
class Parts:
    values: tuple[Any, ...]
    form: Form


def flatten_objects(tree: Any) -> Any:
    """`tree` with a `Parts` for every object that is not a registered container."""
    return _apart(tree, ())


def _apart(tree: Any, around: tuple[int, ...]) -> Any:
    return pytree.tree_map(lambda leaf: _opened(leaf, around), tree)


def _opened(x: Any, around: tuple[int, ...]) -> Any:
    if isinstance(x, torch.Tensor) and x.is_complex():
        return Parts((real_of(x),), Form(Complex, ("real",), {}))
    if isinstance(x, _SETTLED + _DECIDED) or not _is_its_dict(type(x)) or id(x) in around:
        return x
    attributes = {name: _apart(value, (*around, id(x))) for name, value in vars(x).items()}
    names = tuple(name for name, value in attributes.items() if _is_decided(value))
    fixed = {name: value for name, value in vars(x).items() if name not in names}
    return Parts(tuple(attributes[name] for name in names), Form(type(x), names, fixed))


def _is_its_dict(cls: type) -> bool:
    """Whether the state of an object of this class is only its `__dict__`: no C state, slots or custom reduction."""
    own = cls.__mro__[:-1]
    return (
        not issubclass(cls, torch.Tensor)
        and all(c.__flags__ & _HEAP_TYPE and not c.__dict__.get("__slots__") for c in own)
        and all(
            getattr(cls, name) is getattr(object, name)
            for name in ("__reduce__", "__reduce_ex__", "__getstate__")
        )
    )


def _is_decided(tree: Any) -> bool:
    """Whether any part of it depends on the call: a tensor, or, while tracing, a number computed from sizes."""
    return any(isinstance(x, _DECIDED) for x in pytree.tree_leaves(tree))


def rebuild(values: Iterable[Any], form: Form) -> Any:
    """The object whose attributes `form.names` have these values."""
    if form.type is Complex:
        (x,) = values
        return x if x.is_complex() else torch.view_as_complex(x)  # an argument is returned itself
    made = object.__new__(form.type)
    for name, value in form.fixed.items():
        vars(made)[name] = value if isinstance(value, _SETTLED) else copy.deepcopy(value)
    vars(made).update(zip(form.names, values, strict=True))
    return made


# As text: a class by its name, which is looked up among imported modules, never imported.


def _dumped(form: Form) -> Any:
    return [_value_out(form.type), list(form.names), _value_out(form.fixed)]


def _loaded(stored: Any) -> Form:
    cls, names, fixed = stored
    return Form(_value_in(cls), tuple(names), _value_in(fixed))


def _value_out(x: Any) -> Any:
    if x is None or type(x) in (bool, int, float, str):
        return x
    if isinstance(x, type):
        return {"class": [x.__module__, x.__qualname__]}
    if isinstance(x, torch.dtype | torch.device):
        return {type(x).__name__: str(x).removeprefix("torch.")}
    if type(x) in (list, tuple):
        return {type(x).__name__: [_value_out(v) for v in x]}
    if type(x) is dict:
        return {"dict": [[_value_out(k), _value_out(v)] for k, v in x.items()]}
    raise NotImplementedError(f"a {type(x).__name__} cannot be stored")


def _value_in(x: Any) -> Any:
    if not isinstance(x, dict):
        return x
    ((kind, value),) = x.items()
    match kind:
        case "class":
            module, name = value
            found: Any = sys.modules[module]
            for part in name.split("."):
                found = vars(found)[part]
            if not isinstance(found, type) or not _is_its_dict(found):
                raise ValueError(f"{module}.{name} is not a plain class")
            return found
        case "dtype":
            return getattr(torch, value)
        case "device":
            return torch.device(value)
        case "list":
            return [_value_in(v) for v in value]
        case "tuple":
            return tuple(_value_in(v) for v in value)
        case _:
            return {_value_in(k): _value_in(v) for k, v in value}


pytree.register_pytree_node(
    Parts,
    lambda parts: (list(parts.values), parts.form),
    lambda values, form: Parts(tuple(values), form),
    serialized_type_name="monotile.runtime.objects.Parts",
    to_dumpable_context=_dumped,
    from_dumpable_context=_loaded,
)
