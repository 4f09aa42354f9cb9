"""Checks of data: a Python `if` of which one side only raises, as `if x.isnan().any(): raise ValueError`.

That a trace of this side fails shows that the model cannot go that way. The other is then taken as an assertion is: each call asks.
"""

import dis
from types import CodeType, FrameType

from monotile.frontends.torch.origin import asking_frame

Place = tuple[CodeType, int]  # a function, and the instruction that asks


class Checks:
    """Questions of a model that have one answer, as its traces find them."""

    def __init__(self) -> None:
        self._answers: dict[Place, bool] = {}

    def answer(self, asked: Place) -> bool | None:
        """What holds where this is asked; None if either may."""
        return self._answers.get(asked)

    def learn(self, error: BaseException, asked: Place, answer: bool) -> bool:
        """Whether `error` was raised by a statement of the function that had `answer`, the last one given; then it is the other from now on."""
        if not _is_raised_by(error, asked[0]) or self._answers.get(asked) == answer:
            return False
        self._answers[asked] = not answer
        return True


def place_of(frame: FrameType) -> Place:
    """Where a model, or a library such as `torch.distributions`, asks."""
    frame = asking_frame(frame)
    return frame.f_code, frame.f_lasti


def _is_raised_by(error: BaseException, code: CodeType) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code is not code:
        return False
    at = next((i for i in dis.get_instructions(code) if i.offset == trace.tb_lasti), None)
    return at is not None and at.opname == "RAISE_VARARGS"
