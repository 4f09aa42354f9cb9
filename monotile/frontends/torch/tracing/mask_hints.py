"""Disables hints that PyTorch's layers derive from a tensor's values. They do not change the result, only its speed."""

from collections.abc import Generator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.nn.modules import transformer


@contextmanager
def without_hints() -> Generator[None, None, None]:
    """Within, nn.TransformerEncoder and nn.TransformerDecoder do not test whether their mask is the causal one."""
    with patch.object(transformer, "_detect_is_causal_mask", _said_to_be_causal):
        yield


def _said_to_be_causal(
    _mask: torch.Tensor | None, is_causal: bool | None = None, _size: int | None = None
) -> bool:
    return is_causal is True
