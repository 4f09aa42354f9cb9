"""The shapes of views where sizes are open: as the model states them.

PyTorch's tracer splits one dimension after the other, and the last part of each is a quotient: 7 in `x.view(b, h // 7, 7, c)` becomes `h // (h // 7)`.
Later layers nest these quotients, so that the time to simplify them grows with a power of the number of layers.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import _refs as refs
from torch._prims_common import is_contiguous_or_false, make_contiguous_strides_for


@contextmanager
def views_have_stated_shapes() -> Generator[None]:
    """Within, a view of a contiguous tensor with open sizes has exactly the shape that is asked for. That it has as many elements is checked before."""
    split = getattr(refs, "_reshape_view_helper_core_alg", None)
    if split is None:  # of a PyTorch that does it elsewhere
        yield
        return

    def view(x: torch.Tensor, shape: Sequence[Any], *more: Any, **options: Any) -> torch.Tensor:
        is_open = any(isinstance(n, torch.SymInt) for n in (*x.shape, *shape))
        if is_open and is_contiguous_or_false(x):
            return x.as_strided(shape, make_contiguous_strides_for(shape))  # pyright: ignore[reportArgumentType]
        return split(x, shape, *more, **options)

    with patch.object(refs, "_reshape_view_helper_core_alg", view):
        yield
