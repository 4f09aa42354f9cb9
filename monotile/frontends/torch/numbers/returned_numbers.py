"""Results of a model that are data-dependent Python numbers, as of `item()`, a loop's counter or a branch: tensors in the graph, and converted back to
numbers in the results of a call."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager

import torch
from torch import fx
from torch.utils import _pytree as pytree

from monotile.frontends.torch.loops.tensor_numbers import stands_for_number

_KEY = "monotile.numbers"
_CHOSEN = "monotile.chosen_numbers"


class ReturnedNumbers:
    """Records which leaves of a traced model's results are such numbers, on any of its paths."""

    def __init__(self) -> None:
        self._found: list[bool] = []

    @contextmanager
    def recorded(self, model: torch.nn.Module) -> Generator[None]:
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
        chosen = module.meta.get(_CHOSEN, ())
        module.meta[_KEY] = tuple(x or k in chosen for k, x in enumerate(self._found))


def note_chosen(module: fx.GraphModule, places: Iterable[int]) -> None:
    """Records which results of a graph are numbers that a branch chooses."""
    module.meta[_CHOSEN] = frozenset(places)


def returned_numbers(module: fx.GraphModule, count: int) -> tuple[bool, ...]:
    """Which of `count` results are such numbers, as kept; none if that is unknown."""
    found: tuple[bool, ...] = module.meta.get(_KEY, ())
    return found if len(found) == count else (False,) * count
