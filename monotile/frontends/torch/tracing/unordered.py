"""Checks of linear algebra, which raise errors in PyTorch, without an order.

PyTorch keeps them in order by tokens, which are further inputs and results of a graph; with these it loses track of a graph's constants.
A kernel drops them, as it drops other checks of data.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._higher_order_ops import effects


@contextmanager
def checks_are_unordered() -> Generator[None]:
    """Within, they have no tokens."""
    plain = getattr(effects, "_get_effect", None)
    if plain is None:  # of a PyTorch that has no tokens for them
        yield
        return

    def effect(op: Any) -> Any:
        return None if op is torch.ops.aten._linalg_check_errors.default else plain(op)

    with patch.object(effects, "_get_effect", effect):
        yield
