"""Complex arguments of a model that is traced: its graph takes their memory as real numbers, with a last dimension of 2, as a kernel does."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monotile.wrapped import complex_of, real_of

Call = tuple[Sequence[Any], Mapping[str, Any]]


@contextmanager
def real_arguments(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Generator[Call]:
    """Yields the example call with real numbers in place of complex ones. Within, `model` takes it."""
    leaves, tree = pytree.tree_flatten((args, kwargs))
    pairs = {k for k, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.is_complex()}
    if not pairs:
        yield args, kwargs
        return

    def as_complex(_: object, args: Any, kwargs: Any) -> Any:
        given, form = pytree.tree_flatten((args, kwargs))
        seen = [complex_of(x) if k in pairs else x for k, x in enumerate(given)]
        return pytree.tree_unflatten(seen, form)

    hook = model.register_forward_pre_hook(as_complex, with_kwargs=True)
    real = [real_of(x) if k in pairs else x for k, x in enumerate(leaves)]
    try:
        yield pytree.tree_unflatten(real, tree)
    finally:
        hook.remove()
