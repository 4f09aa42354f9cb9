"""Data checks: a Python `if` of which one branch raises, as `if x.isnan().any(): raise ValueError`.

A trace of that branch fails, so the model cannot take it. The other branch is then asserted: each call checks the condition. If the answer leads to the
`raise` only together with what came before, as where a function raises because no `if` of a loop was taken, the other branch is asserted after these
answers alone.
"""

import dis
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType

from monotile.frontends.torch.origin import asking_frame

Site = tuple[CodeType, int]  # a function, and the instruction that evaluates a condition


@dataclass(frozen=True)
class Asked:
    """A condition in a trace. answers: at the forks before it. number: how many conditions came before it."""

    site: Site
    answers: tuple[bool, ...]
    number: int


class Checks:
    """Conditions of a model that can have only one value, as found by its traces."""

    def __init__(self) -> None:
        self._everywhere: dict[Site, bool] = {}
        self._here: dict[Asked, bool] = {}

    def answer(self, asked: Asked) -> bool | None:
        """The only possible value of a condition; None if it may have both."""
        return self._everywhere.get(asked.site, self._here.get(asked))

    def learn(self, error: BaseException, asked: Asked, answer: bool) -> bool:
        """Whether `error` was raised by a statement of the function that received `answer`. From then on the condition has the other value."""
        raised = _raised_at(error, asked.site[0])
        if raised is None or self.answer(asked) == answer:
            return False
        if _leads_straight(asked.site, raised):
            self._everywhere[asked.site] = not answer
        else:
            self._here[asked] = not answer
        return True


def site_of(frame: FrameType) -> Site:
    """Where a model, or a library such as `torch.distributions`, evaluates a condition."""
    frame = asking_frame(frame)
    return frame.f_code, frame.f_lasti


def _raised_at(error: BaseException, code: CodeType) -> int | None:
    """The offset of the `raise` in `code` that raised `error`, if any."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code is not code:
        return None
    at = next((i for i in dis.get_instructions(code) if i.offset == trace.tb_lasti), None)
    return at.offset if at is not None and at.opname == "RAISE_VARARGS" else None


def ends_in_raise(frame: FrameType) -> bool:
    """Whether what `frame` is evaluating leads to a `raise`, and asks nothing before."""
    instructions = list(dis.get_instructions(frame.f_code))
    at = {i.offset: k for k, i in enumerate(instructions)}
    k = next((k for k, i in enumerate(instructions) if i.offset > frame.f_lasti), len(at))
    ends = (i.offset for i in instructions[k:] if i.opname == "RAISE_VARARGS")
    return any(_is_straight(instructions, at, k, end) for end in ends)


def _leads_straight(site: Site, raised: int) -> bool:
    """Whether one branch of the condition at `site` only raises, at the offset `raised`, and asks nothing more."""
    code, asked = site
    instructions = list(dis.get_instructions(code))
    jump = next((k for k, i in enumerate(instructions) if i.offset >= asked and _forks(i)), None)
    if jump is None:
        return False
    at = {i.offset: k for k, i in enumerate(instructions)}
    starts = (jump + 1, at.get(instructions[jump].argval))
    return any(k is not None and _is_straight(instructions, at, k, raised) for k in starts)


def _is_straight(
    instructions: Sequence[dis.Instruction], at: dict[int, int], k: int, raised: int
) -> bool:
    for _ in instructions:
        if k >= len(instructions) or _forks(instructions[k]):
            return False
        i = instructions[k]
        if i.offset == raised:
            return True
        k = at[i.argval] if i.opcode in _JUMPS else k + 1
    return False


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def _forks(i: dis.Instruction) -> bool:
    """Whether `i` is a conditional jump, or ends the function."""
    ends = i.opname.startswith("RETURN") or i.opname == "RERAISE"
    return ends or (
        i.opcode in _JUMPS and not i.opname.startswith(("JUMP_FORWARD", "JUMP_BACKWARD"))
    )
