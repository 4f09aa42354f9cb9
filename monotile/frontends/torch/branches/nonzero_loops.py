"""Loops over nonzero positions, `for k in counts.nonzero():`, while a model is traced.

Their number is data-dependent, but the number of all positions is known. `conversion.py` makes such a loop a loop over all positions, with an `if`
on whether the element is nonzero. So the position is a constant in the body, which a model with one module per position needs.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_MASK = "_monotile_nonzero"  # attribute of a tensor of positions: the vector
_SAME = {"squeeze", "flatten", "reshape", "view", "ravel", "contiguous", "clone", "detach", "to", "long", "int", "__getitem__"}  # fmt: skip


class NonzeroTracker(TorchFunctionMode):
    """Within, the result of `nonzero` of a vector remembers the vector, and a constant formats as in eager PyTorch (`self[f"expert_{k}"]`)."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        named = kwargs or {}
        first = args[0] if args else None
        name = getattr(func, "__name__", "")
        if not isinstance(first, torch.Tensor):
            return func(*args, **named)
        if name == "__format__" and first.ndim == 0 and getattr(first, "constant", None) is not None:  # fmt: skip
            return format(first.item(), *args[1:])
        if (name == "where" and len(args) == 1) or named.get("as_tuple"):
            found = first.nonzero().unbind(1)  # as one operator they would share memory unseen
        else:
            found = func(*args, **named)
        if name in ("nonzero", "where") and len(args) == 1 and first.ndim == 1:
            for x in found if isinstance(found, tuple) else (found,):
                setattr(x, _MASK, first)
        elif (
            name in _SAME
            and (mask := mask_of(first)) is not None
            and _has_same_length(found, first)
        ):
            setattr(found, _MASK, mask)
        return found


def mask_of(x: Any) -> torch.Tensor | None:
    """The vector whose nonzero positions are the rows of `x`; None for other tensors."""
    return getattr(x, _MASK, None) if isinstance(x, torch.Tensor) else None


def _has_same_length(found: Any, x: torch.Tensor) -> bool:
    if not isinstance(found, torch.Tensor) or found.ndim not in (1, 2):
        return False
    sizes = [str(t.shape[0]) for t in (found, x)]
    return sizes[0] == sizes[1] and (found.ndim == 1 or found.shape[1] == 1)


def iterate_nonzero(x: Iterable[Any]) -> Iterable[tuple[Any, Any]]:
    """The items of a loop over `x`, each with a condition. For nonzero positions: all positions, with whether the element is nonzero."""
    mask = mask_of(x)
    if mask is None:
        return ((True, row) for row in x)
    assert isinstance(x, torch.Tensor)
    # Positions are constants while the body is traced.
    numbers = ([k] if x.ndim == 2 else k for k in range(mask.shape[0]))
    return ((mask[k] != 0, torch.tensor(n, dtype=x.dtype)) for k, n in enumerate(numbers))
