"""The exact result of a model, and the error of another result against it."""

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode

from monotile.runtime.objects import flatten_objects
from monotile.runtime.reference import Call, map_tensors


def error(found: Any, exact: Any) -> float:
    """||found - exact|| / ||exact||, the largest over all results; infinite if shapes or non-finite places differ."""
    pairs = zip(tensors(found), tensors(exact), strict=True)
    return max(_error(x.double(), y.double()) for x, y in pairs)


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors of a tree, in order."""
    return [x for x in pytree.tree_leaves(flatten_objects(tree)) if isinstance(x, torch.Tensor)]


def _error(x: torch.Tensor, y: torch.Tensor) -> float:
    finite = y.isfinite()
    if x.shape != y.shape or not torch.equal(finite, x.isfinite()):
        return float("inf")
    away, size = float((x - y)[finite].norm()), float(y[finite].norm())
    return away / size if size else away


def exact(model: torch.nn.Module, call: Call) -> Any:
    """PyTorch's result in float64, operator by operator. Only the operands of the current operator are converted. Casts to an explicit
    dtype in the model (statistics in float32) become float64 as well, except casts to 8 bits, which are part of the model's definition."""
    args, kwargs = map_tensors(call, _wide)
    with torch.no_grad(), _Float64():
        return model(*args, **kwargs)


class _Float64(TorchFunctionMode):
    """Converts floating-point operands, results and explicit dtypes of every PyTorch function to float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        named = dict(kwargs or {})
        if getattr(func, "__name__", "") == "__get__":  # an attribute access, no computation
            found = func(*args, **named)
            return torch.float64 if _narrow(found) else found
        if _writes(func, args):  # an update of the model's own tensor, which is read later
            return func(*args, **named)
        args, named = pytree.tree_map(_widest, (args, named))
        return pytree.tree_map(_widest, func(*args, **named))


def _writes(func: Any, args: Any) -> bool:
    name = getattr(func, "__name__", "")
    inplace = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    return inplace and _widest(args[0]) is not args[0]


def _widest(x: Any) -> Any:
    return torch.float64 if _narrow(x) else _wide(x)


def _narrow(x: Any) -> bool:
    return isinstance(x, torch.dtype) and x.is_floating_point and x.itemsize > 1


def _wide(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x
