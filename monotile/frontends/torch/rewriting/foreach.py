"""Operators on lists of tensors, `torch._foreach_mul(xs, 2)`, as one operator a tensor: optimizers and tensordict write them."""

from collections.abc import Callable
from typing import Any

import torch

Plain = Callable[..., Any]
_PREFIX = "aten::_foreach_"


def decompositions_of_lists() -> dict[Any, Plain]:
    """For each operator on lists that has a counterpart for one tensor."""
    names: list[str] = torch._C._dispatch_get_all_op_names()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    found = dict[Any, Plain]()
    for name in names:
        kind, _, overload = name.removeprefix(_PREFIX).partition(".")
        if name.startswith(_PREFIX) and (plain := _for_one(kind, overload)):
            packet = getattr(torch.ops.aten, f"_foreach_{kind}")
            found[getattr(packet, overload or "default")] = _one_by_one(plain)
    return found


def _for_one(kind: str, overload: str) -> Plain | None:
    if kind.endswith("_") or overload.endswith("out"):
        return None
    match kind, overload:
        case "addcmul" | "addcdiv", "Tensor":  # factors as a tensor
            return None
        case "addcmul", _:
            return lambda x, y, z, value=1: torch.addcmul(x, y, z, value=value)
        case "addcdiv", _:
            return lambda x, y, z, value=1: torch.addcdiv(x, y, z, value=value)
        case "zero", _:
            return torch.zeros_like
        case "copy", _:
            return torch.ops.aten.copy.default
        case "norm", _:
            return lambda x, by=2, dtype=None: torch.linalg.vector_norm(x, by, dtype=dtype)
        case "maximum", "Scalar" | "ScalarList":
            return torch.clamp_min
        case "minimum", "Scalar" | "ScalarList":
            return torch.clamp_max
        case _:
            return getattr(torch, kind, None)


def _one_by_one(plain: Plain) -> Plain:
    def decomposed(*args: Any, **kwargs: Any) -> list[Any]:
        lists = [x if isinstance(x, (list, tuple)) else None for x in args]
        count = next(len(x) for x in lists if x is not None)
        given = (
            [y if x is None else x[k] for x, y in zip(lists, args, strict=True)]
            for k in range(count)
        )
        return [plain(*each, **kwargs) for each in given]

    return decomposed
