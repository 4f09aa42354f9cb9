"""Operators that Python functions define, by `torch.library.custom_op`: PyTorch does not look into them, but what they compute is what their functions do."""

from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch.utils import _pytree as pytree

Plain = Callable[..., Any]


def decompositions_of_custom() -> dict[Any, Plain]:
    """For each such operator that does not update its arguments. It stays as it is where its function cannot be traced."""
    found = dict[Any, Plain]()
    for definition in OPDEFS.values():
        op: Any = definition._opoverload  # pyright: ignore[reportPrivateUsage]
        if not op._schema.is_mutable:
            found[op] = _traced(definition)
    return found


def _traced(definition: Any) -> Plain:
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        given = pytree.tree_leaves((args, kwargs))
        device = next((x.device.type for x in given if isinstance(x, torch.Tensor)), None)
        kernels: dict[str | None, Plain] = definition._backend_fns
        function = kernels.get(device) or kernels.get(None) or definition._init_fn
        try:
            return function(*args, **kwargs)
        except Exception:  # it computes with NumPy, or calls a kernel in another language
            return NotImplemented

    return decomposed
