"""Overrides of PyTorch functions while a model is traced.

One mode knows all of them: the tracer itself asks a tensor fifty times for its shape, strides and the like, and each mode lets each of these
questions pass.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode

# Receives the function, its positional arguments and its keyword arguments.
Override = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class FunctionOverrides(TorchFunctionMode):
    """Within, functions with the names in `tables` are overridden. No name is in two tables."""

    def __init__(self, *tables: Mapping[str, Override]) -> None:
        super().__init__()
        self._instead = {name: instead for table in tables for name, instead in table.items()}
        assert len(self._instead) == sum(map(len, tables))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        instead = self._instead.get(getattr(func, "__name__", ""))
        if instead is None:
            return func(*args, **(kwargs or {}))
        return instead(func, args, dict(kwargs or {}))
