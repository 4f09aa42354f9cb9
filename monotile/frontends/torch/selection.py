"""Run-time helpers of converted functions: see `choices.py`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

MISSING = object()  # value of an unassigned name


def undecided(test: Any) -> bool:
    """Whether the condition is a tensor without a known value."""
    return isinstance(test, torch.Tensor)


class Unchanged(TorchFunctionMode):
    """Active while both branches run: neither may update a tensor in place that the other branch or later code reads."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        changes = name in _CHANGING or (name.endswith("_") and not name.endswith("__"))
        if changes or given.get("out") is not None or _in_place(func, args, given):
            raise RuntimeError(
                f"data-dependent: a branch on a tensor updates a tensor in place, by {name}"
            )
        return func(*args, **given)


_CHANGING = {"__setitem__", "__set__"} | {f"__i{n}__" for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")}  # fmt: skip


def _in_place(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function of torch.nn is called with inplace=True."""
    if not isinstance(func, FunctionType):
        return False
    try:
        return bool(inspect.signature(func).bind(*args, **kwargs).arguments.get("inplace"))
    except TypeError:
        return False


def _truth(x: torch.Tensor) -> torch.Tensor:
    if x.numel() != 1:
        raise RuntimeError(f"the truth of a tensor of shape {tuple(x.shape)} is ambiguous")
    return x.reshape(()) != 0


def both(*values: Callable[[], Any]) -> Any:
    """`and` that accepts tensors."""
    found: Any = True
    for value in values:
        new = value()
        tensors = [x for x in (found, new) if isinstance(x, torch.Tensor)]
        if not isinstance(new, torch.Tensor) and not new:
            return new
        found = new if not tensors else _all([_truth(x) for x in tensors])
    return found


def either(*values: Callable[[], Any]) -> Any:
    """`or` that accepts tensors."""
    found: Any = False
    for value in values:
        new = value()
        tensors = [x for x in (found, new) if isinstance(x, torch.Tensor)]
        if not isinstance(new, torch.Tensor) and new:
            return new
        found = new if not tensors else ~_all([~_truth(x) for x in tensors])
    return found


def _all(truths: list[torch.Tensor]) -> torch.Tensor:
    found = truths[0]
    for x in truths[1:]:
        found = found & x
    return found


def opposite(x: Any) -> Any:
    """`not` that accepts tensors."""
    return ~_truth(x) if isinstance(x, torch.Tensor) else not x


def select(test: torch.Tensor, then: Any, otherwise: Any) -> Any:
    """The value of a name after both branches have run."""
    if then is otherwise or otherwise is MISSING:
        return then
    if then is MISSING:
        return otherwise
    if isinstance(then, torch.Tensor) and isinstance(otherwise, torch.Tensor):
        if then.shape != otherwise.shape or then.dtype != otherwise.dtype:
            raise RuntimeError(
                f"data-dependent: one branch gives {then.dtype} {tuple(then.shape)}, the other"
                f" {otherwise.dtype} {tuple(otherwise.shape)}"
            )
        return torch.where(_truth(test), then, otherwise)
    if type(then) is type(otherwise) and then == otherwise:
        return then
    raise RuntimeError("data-dependent: the branches give different values that are not tensors")
