"""Operators whose schema takes Python numbers, and no tensors in their place, with numbers that tensors have: `F.leaky_relu(x, slope.item())`.

Each is composed of operators that take tensors, by the formula in PyTorch's documentation.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from monotile.frontends.torch.branches.markers import ASSERTED, guard
from monotile.frontends.torch.loops.number_slices import first_positions
from monotile.frontends.torch.loops.tensor_numbers import (
    number_tensor,
    stands_for_number,
    tensor_of,
)

T = torch.Tensor


def with_number_operands(name: str, args: Any, named: Mapping[str, Any]) -> Any:
    """The result of the operator `name` with such numbers; None for other operators, and without such numbers."""
    plain = name if name.startswith("__") else name.strip("_")
    composed = _COMPOSED.get(plain)
    if composed is None or not args or not isinstance(args[0], T):
        return None
    if not any(map(stands_for_number, pytree.tree_leaves((args[1:], dict(named))))):
        return None
    if plain in ("add", "sub", "rsub") and "alpha" not in named:
        return None
    if plain == "topk":
        return composed(*args, **named)
    others = {k: v for k, v in named.items() if k != "inplace"}
    within = name.endswith("_") or bool(named.get("inplace"))
    if args[-1] is True or args[-1] is False:
        args, within = args[:-1], within or args[-1]  # `inplace` of an activation
    x, found = args[0], composed(*args, **others)
    if plain in _OF_OWN_TYPE and found.dtype is not x.dtype:
        found = found.to(x.dtype)
    return x.copy_(found) if within else found


def _add(x: T, other: T, *, alpha: Any) -> T:
    return x + _scaled(other, alpha)


def _sub(x: T, other: T, *, alpha: Any) -> T:
    return x - _scaled(other, alpha)


def _rsub(x: T, other: T, *, alpha: Any) -> T:
    return other - _scaled(x, alpha)


def _scaled(x: T, by: Any) -> T:
    """x times a number, of the type of x."""
    return (x * by).to(x.dtype)


def _clamp(x: T, min: Any = None, max: Any = None) -> T:
    found = x if min is None else x.clamp(min=min)
    return found if max is None else found.clamp(max=max)


def _new_tensor(x: T, data: Any, dtype: Any = None, device: Any = None, **_: Any) -> T:
    return tensor_of(data, dtype or x.dtype, device or x.device)


def _leaky_relu(x: T, negative_slope: Any = 0.01) -> T:
    return torch.where(x > 0, x, _scaled(x, negative_slope))


def _elu(x: T, alpha: Any = 1.0) -> T:
    return torch.where(x > 0, x, _scaled(x.expm1(), alpha))


def _celu(x: T, alpha: Any = 1.0) -> T:
    return torch.where(x > 0, x, _scaled((x / alpha).to(x.dtype).expm1(), alpha))


def _softplus(x: T, beta: Any = 1.0, threshold: Any = 20.0) -> T:
    scaled = _scaled(x, beta)
    return torch.where(scaled > threshold, x, (scaled.exp().log1p() / beta).to(x.dtype))


def _hardtanh(x: T, min_val: Any = -1.0, max_val: Any = 1.0) -> T:
    return _clamp(x, min_val, max_val)


def _threshold(x: T, threshold: Any, value: Any) -> T:
    return torch.where(x <= threshold, value, x)


def _hardshrink(x: T, lambd: Any = 0.5) -> T:
    return torch.where(x.abs() <= lambd, 0, x)


def _softshrink(x: T, lambd: Any = 0.5) -> T:
    return torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, x * 0))


def _addcmul(x: T, tensor1: T, tensor2: T, *, value: Any) -> T:
    return x + _scaled(tensor1, value) * tensor2


def _addcdiv(x: T, tensor1: T, tensor2: T, *, value: Any) -> T:
    return x + _scaled(tensor1, value) / tensor2


def _lerp(x: T, end: T, weight: Any) -> T:
    return torch.lerp(x, end, number_tensor(weight).to(x.dtype))


def _addmm(x: T, first: T, second: T, *, beta: Any = 1, alpha: Any = 1) -> T:
    return _scaled(x, beta) + _scaled(first @ second, alpha)


def _addr(x: T, vec1: T, vec2: T, *, beta: Any = 1, alpha: Any = 1) -> T:
    return _scaled(x, beta) + _scaled(torch.outer(vec1, vec2), alpha)


def _roll(x: T, shifts: Any, dims: Any = ()) -> T:
    each, along = (list(y) if isinstance(y, list | tuple) else [y] for y in (shifts, dims))
    if not along:
        return _roll(x.reshape(-1), each, [0]).reshape(x.shape)
    for shift, dim in zip(each, along, strict=True):
        places = torch.arange(x.shape[dim], device=x.device) - shift
        x = x.index_select(dim, places % x.shape[dim])
    return x


def _pad(x: T, pad: Any, mode: str = "constant", value: Any = 0) -> T:
    inside = F.pad(torch.ones_like(x, dtype=torch.bool), pad)
    return torch.where(inside, F.pad(x, pad, mode), value)


def _attention(query: T, key: T, value: T, *args: Any, scale: Any, **named: Any) -> T:
    return F.scaled_dot_product_attention(_scaled(query, scale), key, value, *args, scale=1.0, **named)  # fmt: skip


def _topk(x: T, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The first of all in their order, which is one that `sorted=False` may have too."""
    del sorted
    if not x.ndim:
        return None
    n, count = x.shape[dim], number_tensor(k).reshape(1)
    guard((count >= 0) & (count <= n), [1], ASSERTED)
    kept = first_positions(count, n).to(x.device)
    values, places = (y.index_select(dim, kept) for y in torch.topk(x, n, dim, largest))
    return torch.return_types.topk((values, places))


_COMPOSED: Mapping[str, Callable[..., Any]] = {
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "clamp": _clamp,
    "clip": _clamp,
    "new_tensor": _new_tensor,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "celu": _celu,
    "softplus": _softplus,
    "hardtanh": _hardtanh,
    "threshold": _threshold,
    "hardshrink": _hardshrink,
    "softshrink": _softshrink,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "lerp": _lerp,
    "addmm": _addmm,
    "addmv": _addmm,
    "baddbmm": _addmm,
    "addr": _addr,
    "roll": _roll,
    "topk": _topk,
    "pad": _pad,
    "scaled_dot_product_attention": _attention,
}
# Their results have the type of their first argument: a number among tensors without dimensions, or among integers, would promote it.
_OF_OWN_TYPE = _COMPOSED.keys() - {"add", "sub", "rsub", "clamp", "clip", "addcmul", "addcdiv", "new_tensor"}  # fmt: skip
