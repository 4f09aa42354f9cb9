"""Size classes: which of them get kernels of their own."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from monotile.errors import MonotileError

T = TypeVar("T")
# The upper bounds of symbols; a symbol that is missing has the upper bound of its range.
Class = Mapping[str, int]
# A class gets no kernel if its calls take at most this many times as long in the next larger one.
MAX_SLOWDOWN = 1.12


def worthwhile(classes: Sequence[Class], seconds: Callable[[Class], float]) -> Iterator[Class]:
    """Yields, ascending, those of `classes` whose kernels are worth their compilation, each as soon as that is known. The last class, which has all
    sizes, is always one of them.

    seconds: the cost model's time of the kernel for a class at its largest sizes. A class is left out if the next class that includes it takes at
    most MAX_SLOWDOWN times as long as it does, and as each class does that was left out before in favour of it.
    """
    least = [math.inf] * len(classes)  # of the classes left out in favour of class k
    for k, most in enumerate(classes[:-1]):
        ahead = next(n for n in range(k + 1, len(classes)) if _covers(classes[n], most))
        own = min(seconds(most), least[k])
        if seconds(classes[ahead]) <= MAX_SLOWDOWN * own:
            least[ahead] = min(own, least[ahead])
        else:
            yield most
    yield classes[-1]


def _covers(large: Class, small: Class) -> bool:
    return all(small.get(name, math.inf) <= most for name, most in large.items())


def start_or_skip(
    begin: Callable[[Sequence[Class]], list[T]], classes: Sequence[Class], whole: bool
) -> list[T]:
    """The kernels for `classes` that `begin` starts to build, for one path through the model.

    whole: it is the main path; any other is for sizes that the main path does not accept. If such a path cannot be compiled, it has no kernels, and
    a call of its sizes raises InputError.
    """
    try:
        return begin(classes)
    except MonotileError:
        if whole:
            raise
        return []
