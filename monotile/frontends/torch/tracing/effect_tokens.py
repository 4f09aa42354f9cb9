"""Removes the effect tokens of error checks in linear algebra.

PyTorch orders these checks by tokens, which are additional inputs and results of a graph; with these it loses track of the graph's constants. A kernel
drops the checks, as it drops other data checks.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._higher_order_ops import effects


@contextmanager
def checks_have_no_tokens() -> Generator[None]:
    """Within, these checks have no tokens."""
    plain = getattr(effects, "_get_effect", None)
    if plain is None:  # this version of PyTorch has no tokens for them
        yield
        return

    def effect(op: Any) -> Any:
        return None if op is torch.ops.aten._linalg_check_errors.default else plain(op)

    with patch.object(effects, "_get_effect", effect):
        yield
