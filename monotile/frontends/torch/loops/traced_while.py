"""Traces the body of a `while` loop on a tensor's value once, as `traced_loop.py` does for `for` loops.

    while (y - x).norm() > 1e-4:        loop = TracedWhile(...)
        x, y = y, self.f(y)             with loop:
    return y                                while loop.more(locals(), (y - x).norm() > 1e-4):
                                                x, y = loop.names["x"], loop.names["y"]     (in short)
                                                x, y = y, self.f(y)
                                        x, y = loop.names["x"], loop.names["y"]
                                        return y

The test is a carried value too: its value before the loop, and after each iteration.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import torch

from monotile.errors import CaptureError
from monotile.frontends.torch.branches.markers import WHILE, as_tensor, is_unknown, truth
from monotile.frontends.torch.branches.statements import FLAG
from monotile.frontends.torch.loops.carried import ListGrowth, Place
from monotile.frontends.torch.loops.stacked import LoopItems
from monotile.frontends.torch.loops.tensor_numbers import number, number_tensor
from monotile.frontends.torch.loops.traced_loop import Iterations, TracedLoop


class WhileLoopError(CaptureError):
    """A `while` loop on a tensor's value cannot become a loop of the kernel. line: of its test."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.line = line


class TracedWhile(TracedLoop):
    """See `TracedLoop`. line: of the test."""

    def __init__(self, names: Sequence[str], first: Iterable[str], line: int) -> None:
        super().__init__(LoopItems(WHILE, lambda _: None), names, first)
        self.line = line
        self._test: Any = None

    def more(self, names: Mapping[str, Any], test: Any = True) -> bool:
        test = as_tensor(test) if is_unknown(test) else test
        self._test = truth(test) if isinstance(test, torch.Tensor) else bool(test)
        if self._iterations is None and self._test is False:
            self.names |= {n: names[n] for n in self._listed if n in names}
            self.open = False
            return False
        return super().more(names)

    def _run(self) -> Iterations:
        """Numbers that an iteration reads and changes are tensors from the start, and so are the flags of early exits."""
        for n, x in self.names.items():
            if n.startswith(FLAG) and isinstance(x, bool):
                self.names[n] = torch.full((), x)
            elif n in self._first and type(x) in (int, float):
                self.names[n] = number(number_tensor(x))
        yield from super()._run()

    def _runs_at_least_once(self) -> bool:
        return self._test is True

    def _remaining(self, peeled: int) -> int:
        return WHILE

    def _item(self, iteration: torch.Tensor, peeled: int) -> None:
        pass

    def _condition(self) -> list[torch.Tensor]:
        known = isinstance(self._test, bool)
        return [torch.full((), self._test) if known else self._test.clone()]

    def _trial(self) -> Generator[None, Mapping[str, Any], tuple[list[Place], list[ListGrowth]]]:
        before = self._test
        places, growths = yield from super()._trial()
        self._test = before
        if growths:
            raise self.refusal("its body appends to a list: allocate a tensor of the maximum length, and write into that")  # fmt: skip
        return places, growths

    def refusal(self, text: str) -> CaptureError:
        return WhileLoopError(f"at {self.where}: the number of iterations of this loop depends on data, and {text}", self.line)  # fmt: skip
