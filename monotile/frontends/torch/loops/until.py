"""Loops that go on as long as a tensor says, while a model is traced: the body is traced once, as those of `turns.py` are.

    while (y - x).norm() > 1e-4:        loop = Until(...)
        x, y = y, self.f(y)             with loop:
    return y                                while loop.more(locals(), (y - x).norm() > 1e-4):
                                                x, y = loop.names["x"], loop.names["y"]     (in short)
                                                x, y = y, self.f(y)
                                        x, y = loop.names["x"], loop.names["y"]
                                        return y

The test is carried as well: what it gives before the loop, and behind each turn.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import torch

from monotile.errors import CaptureError
from monotile.frontends.torch.branches.marks import UNTIL, as_tensor, is_unknown, truth
from monotile.frontends.torch.branches.sides import FLAG
from monotile.frontends.torch.loops.carried import Growth, Place, number_type
from monotile.frontends.torch.loops.spans import number
from monotile.frontends.torch.loops.stacked import Counted
from monotile.frontends.torch.loops.turns import Passes, Turns


class EndlessError(CaptureError):
    """A loop that goes on as long as a tensor says cannot be one of the kernel. line: of its test."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.line = line


class Until(Turns):
    """See `Turns`. line: of the test."""

    def __init__(self, names: Sequence[str], first: Iterable[str], line: int) -> None:
        super().__init__(Counted(UNTIL, lambda _: None), names, first)
        self.line = line
        self._test: Any = None

    def more(self, names: Mapping[str, Any], test: Any = True) -> bool:
        test = as_tensor(test) if is_unknown(test) else test
        self._test = truth(test) if isinstance(test, torch.Tensor) else bool(test)
        if self._passes is None and self._test is False:
            self.names |= {n: names[n] for n in self._listed if n in names}
            self.open = False
            return False
        return super().more(names)

    def _run(self) -> Passes:
        """Numbers that a turn reads and changes are tensors from the outset, and so is whether the loop was left."""
        for n, x in self.names.items():
            if n.startswith(FLAG) and isinstance(x, bool):
                self.names[n] = torch.full((), x)
            elif n in self._first and type(x) in (int, float):
                self.names[n] = number(torch.full((), x, dtype=number_type(x)))
        yield from super()._run()

    def _begins(self) -> bool:
        return self._test is True

    def _left(self, begun: int) -> int:
        return UNTIL

    def _item(self, turn: torch.Tensor, begun: int) -> None:
        pass

    def _goes_on(self) -> list[torch.Tensor]:
        known = isinstance(self._test, bool)
        return [torch.full((), self._test) if known else self._test.clone()]

    def _try(self) -> Generator[None, Mapping[str, Any], tuple[list[Place], list[Growth]]]:
        before = self._test
        places, growths = yield from super()._try()
        self._test = before
        if growths:
            raise self.refusal("its body appends to a list: begin with a tensor as long as it may get, and write into that")  # fmt: skip
        return places, growths

    def refusal(self, text: str) -> CaptureError:
        return EndlessError(f"at {self.where}: this loop goes on as long as data say, and {text}", self.line)  # fmt: skip
