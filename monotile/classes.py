"""Classes of sizes: which of them get kernels of their own."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from monotile.errors import MonotileError

T = TypeVar("T")
# What symbols are at most; those without a number, as much as there may be.
Class = Mapping[str, int]
# Of the time in a kernel of its own, what a call may take where that kernel is not made.
WORTH = 1.12


def worth(classes: Sequence[Class], seconds: Callable[[Class], float]) -> Iterator[Class]:
    """Those of `classes` whose kernels are worth their compilation, ascending, each as soon as it is known; the last one is for all.

    seconds: what the model says that the kernel for a class takes at its most. For less no kernel takes longer, so a class is left out where
    the next one for as much takes at most WORTH times as long as it, and as all that were left out for it.
    """
    least = [math.inf] * len(classes)  # of those that were left out
    for k, most in enumerate(classes[:-1]):
        ahead = next(n for n in range(k + 1, len(classes)) if _covers(classes[n], most))
        own = min(seconds(most), least[k])
        if seconds(classes[ahead]) <= WORTH * own:
            least[ahead] = min(own, least[ahead])
        else:
            yield most
    yield classes[-1]


def _covers(large: Class, small: Class) -> bool:
    return all(small.get(name, math.inf) <= most for name, most in large.items())


def begun_of(begin: Callable[[], list[T]], whole: bool) -> list[T]:
    """What `begin` gives: the kernels of a course of the model, which may be `whole`, or a further one for the sizes that this does not take. Of one
    that cannot be compiled there are none, and a call of these sizes is told."""
    try:
        return begin()
    except MonotileError:
        if whole:
            raise
        return []
