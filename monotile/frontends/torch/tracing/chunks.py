"""`torch.chunk` of a data-dependent size while a model is traced: how many parts there are depends on the size, unless it is a multiple of their number."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy.symbol import SymT, symbol_is_type

from monotile.frontends.torch.tracing.overrides import Override


def _chunk(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    parts = _parts(*args, **named)
    return func(*args, **named) if parts is None else parts


def _parts(input: torch.Tensor, chunks: Any, dim: int = 0) -> Any:  # the names are PyTorch's
    """The parts of a size that is a multiple of their number whatever the data; else None."""
    n = input.shape[dim] if input.ndim else 0
    if not isinstance(chunks, int) or chunks < 1 or not isinstance(n, torch.SymInt):
        return None
    symbols: Any = n.node.expr.free_symbols
    of_data = any(symbol_is_type(s, SymT.UNBACKED_INT) for s in symbols)
    if not of_data or not statically_known_true(n % chunks == 0):
        return None
    return torch.split_with_sizes(input, [n // chunks] * chunks, dim)


CHUNKS: Mapping[str, Override] = {"chunk": _chunk}
