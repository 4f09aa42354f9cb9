"""Data checks: a Python `if` of which one branch raises, as `if x.isnan().any(): raise ValueError`.

A trace of that branch fails, so the model cannot take it. The other branch is then asserted: each call checks the condition.
"""

import dis
from types import CodeType, FrameType

from monotile.frontends.torch.origin import asking_frame

Site = tuple[CodeType, int]  # a function, and the instruction that evaluates a condition


class Checks:
    """Conditions of a model that can have only one value, as found by its traces."""

    def __init__(self) -> None:
        self._answers: dict[Site, bool] = {}

    def answer(self, asked: Site) -> bool | None:
        """The only possible value of a condition; None if it may have both."""
        return self._answers.get(asked)

    def learn(self, error: BaseException, asked: Site, answer: bool) -> bool:
        """Whether `error` was raised by a statement of the function that received `answer`. From then on the condition has the other value."""
        if not _is_raised_by(error, asked[0]) or self._answers.get(asked) == answer:
            return False
        self._answers[asked] = not answer
        return True


def site_of(frame: FrameType) -> Site:
    """Where a model, or a library such as `torch.distributions`, evaluates a condition."""
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
