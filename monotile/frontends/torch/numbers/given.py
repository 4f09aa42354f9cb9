"""Results of a model that are numbers of Python which data decide, as of `item()` or a loop's counter: tensors of the graph, and numbers again in what a
call gives."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import fx
from torch.utils import _pytree as pytree

from monotile.frontends.torch.loops.tensor_numbers import stands_for_number

_KEY = "monotile.numbers"


class Given:
    """Hears which leaves of a traced model's results are such numbers, in any of its courses."""

    def __init__(self) -> None:
        self._found: list[bool] = []

    @contextmanager
    def heard(self, model: torch.nn.Module) -> Generator[None]:
        def results(_: object, __: object, found: object) -> None:
            now = [*map(stands_for_number, pytree.tree_leaves(found))]
            before = self._found if len(self._found) == len(now) else [False] * len(now)
            self._found = [x or y for x, y in zip(before, now, strict=True)]

        hook = model.register_forward_hook(results)
        try:
            yield
        finally:
            hook.remove()

    def keep(self, module: fx.GraphModule) -> None:
        module.meta[_KEY] = tuple(self._found)


def numbers_given(module: fx.GraphModule, count: int) -> tuple[bool, ...]:
    """Of `count` results, as kept; none where that is not known."""
    found: tuple[bool, ...] = module.meta.get(_KEY, ())
    return found if len(found) == count else (False,) * count
