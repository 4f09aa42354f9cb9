"""A model whose course depends on its data, exported: every course that it may take, as one graph.

`torch.export` cannot know a tensor's truth value. Where Python asks for one, the `if` is converted if that can be done, so that the trace
runs both sides (`choices.py`). If it cannot be done, the trace is a course: it goes on as if the value were false, and the model is
traced again with it true. What the two have in common is followed by a `torch.cond` of the rest of both (`merge.py`, `regions.py`).
"""

import dis
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from monotile.errors import CaptureError
from monotile.frontends.torch.branches import marks
from monotile.frontends.torch.branches.checks import Checks, Place, place_of
from monotile.frontends.torch.branches.choices import MOST as MOST_FUNCTIONS
from monotile.frontends.torch.branches.choices import Choices, choices
from monotile.frontends.torch.branches.hits import Hits, mask_of
from monotile.frontends.torch.branches.listed import ChosenError, Listed
from monotile.frontends.torch.branches.merge import Course, merge
from monotile.frontends.torch.branches.regions import LeakError, outline
from monotile.frontends.torch.branches.selection import Unjoinable
from monotile.frontends.torch.loops.detection import LoopDetectedError, loops_detected
from monotile.frontends.torch.loops.long_loops import LongLoops
from monotile.frontends.torch.loops.tensor_numbers import number
from monotile.frontends.torch.loops.traced_loop import TracedLoop
from monotile.frontends.torch.loops.traced_while import WhileLoopError
from monotile.frontends.torch.numbers.constants import Constants
from monotile.frontends.torch.origin import (
    describe_frame,
    is_assert,
    is_tracers,
    raised_at,
    users_frame,
)
from monotile.frontends.torch.rewriting.lifted import lifted_once
from monotile.frontends.torch.rewriting.sharing import shared_as_run

MOST = 32  # limit of courses of one model
Export = Callable[[], ExportedProgram]


def one_course(export: Export) -> ExportedProgram:
    """What `export`, which traces a model, gives. Raises BegunError where a loop begins that takes as many turns as a size says, and can be converted."""
    with choices() as known, _loops_detected(known):
        return export()


def _loops_detected(known: Choices) -> AbstractContextManager[None]:
    """Loops that a size ends, and long ones where these are traced once."""
    loops = TracedLoop.known
    long = LongLoops(known.convert_loop, known.own, loops.long).call if loops is not None else None
    return loops_detected(known.begins, long)


class TooManyCoursesError(CaptureError):
    """A model has more courses than are traced."""


class _Again(BaseException):
    """An `if` was converted or is no longer: the model has to be traced anew."""


def all_courses(export: Export) -> ExportedProgram:
    """What `export`, which traces a model, gives if every `if` on a tensor's value is a branch. Raises CaptureError, and what `export` raises."""
    try:
        return _outlined(export, MOST_FUNCTIONS)
    except LeakError as leak:
        try:
            return _outlined(export, 0)
        except (TooManyCoursesError, ChosenError):
            raise leak from None


def _outlined(export: Export, most: int) -> ExportedProgram:
    """At most so many functions are converted. Raises LeakError where the sides of a converted `if` cannot be kept apart."""
    known, refused = (Constants(), Checks()), list[CaptureError]()
    with choices(most) as conversions, patch.object(TracedLoop, "peeled", set[str]()):
        while True:
            try:
                merged = merge(_courses(export, conversions, *known))
            except (_Again, LoopDetectedError):
                continue
            except Unjoinable as e:
                conversions.refuse(conversions.raised_in(e), e.line)
                continue
            except WhileLoopError as e:
                conversions.refuse(conversions.raised_in(e), e.line)
                refused.append(e)
                continue
            except CaptureError as e:
                if not refused or isinstance(e, LeakError):
                    raise
                raise refused[-1] from e
            return outline(shared_as_run(lifted_once(merged)))


def _courses(
    export: Export, conversions: Choices, constants: Constants, checks: Checks
) -> dict[Course, ExportedProgram]:
    """By what was answered at each fork."""
    found: dict[Course, ExportedProgram] = {}
    todo: list[Course] = [()]
    while todo:
        trace = _Trace(todo.pop(), conversions, constants, checks)
        try:
            with torch.no_grad(), trace.asked(), _loops_detected(conversions):
                exported = export()
        except Exception as e:
            if trace.checks_data(e):
                raise _Again from e
            raise trace.failed(e) from e
        if not constants.still(exported):
            raise _Again
        if len(found) == MOST:
            raise trace.too_many()
        found[tuple(trace.answers)] = exported
        todo += [(*trace.answers[:k], True) for k in range(trace.given, len(trace.answers))]
    return found


class _Trace:
    """One trace of the model. answers: of the forks so far, of which the first `given` were set. where: the last fork."""

    def __init__(
        self, course: Course, conversions: Choices, constants: Constants, checks: Checks
    ) -> None:
        self.answers, self.given = list(course), len(course)
        self.where = ""
        self._met = 0
        self._listed = Listed()
        self._conversions, self._constants, self._checks = conversions, constants, checks
        self._asked: Place | None = None  # at the last fork

    def checks_data(self, error: Exception) -> bool:
        """Whether `error` shows that the answer at the last fork cannot be, which is known from now on."""
        asked = self._asked
        return asked is not None and self._checks.learn(error, asked, self.answers[self._met - 1])

    def failed(self, error: Exception) -> Exception:
        """`error`, which this trace has raised, with the way that it has taken."""
        if isinstance(error, CaptureError) or not self._met:
            return error
        at = raised_at(error)
        reason, *_ = str(error).strip().splitlines() or ["no reason given"]
        if "data-dependent" in str(error):
            advice = "A list's index, a text or a shape that a tensor's value decides cannot be in a kernel: give the tensor, and look it up behind the model"
        else:
            advice = "Both ways have to be possible: a check of data may be written with torch._check, which is dropped"
        return CaptureError(
            f"where a tensor's value is {self.answers[self._met - 1]}, at {self.where}, the model fails"
            + (f", at {at}" if at else "")
            + f": {type(error).__name__}: {reason}. {advice}"
        )

    def too_many(self) -> TooManyCoursesError:
        return TooManyCoursesError(
            f"the model's course depends on a tensor's value in more than {MOST} ways, at the end at"
            f" {self.where}: write it with torch.cond, or a loop with torch.while_loop, or let"
            ' torch.compile(model, backend="monotile") split it there'
        )

    @contextmanager
    def asked(self) -> Generator[None]:
        """Within, the truth of a traced tensor is asked here, and `item()` of one gives a tensor."""
        truth, item, symbol = FakeTensor.__bool__, FakeTensor.item, torch.SymBool.__bool__

        def bool_(x: FakeTensor) -> bool:
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            return self._answer(x, frame) if _is_asked(x, frame) else truth(x)

        def symbol_(x: torch.SymBool) -> bool:
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            asked = marks.is_unknown(x) and not is_tracers(frame)
            return self._answer(marks.as_tensor(x), frame) if asked else symbol(x)

        def item_(x: FakeTensor) -> Any:
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            if not _is_asked(x, frame) or x.numel() != 1 or x.is_complex():
                return item(x)
            constant = self._constants.value(x.reshape(()))
            return _number(x) if constant is None else constant

        def tolist_(x: FakeTensor) -> Any:
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            known = all(type(n) is int for n in x.shape)
            if not _is_asked(x, frame) or not known or x.is_complex():
                return tolist(x)
            rows: list[Any] = list(x.unbind(0)) if x.ndim else []
            return [tolist_(row) for row in rows] if x.ndim else item_(x)

        def iter_(x: FakeTensor) -> Iterator[Any]:
            # Whoever hears of loops as well (`loops/detection.py`) lies between.
            frame = users_frame(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            if mask_of(x) is not None and self._conversions.convert(frame.f_code, frame.f_lineno):
                raise _Again
            return iterate(x)

        iterate, tolist = FakeTensor.__iter__, FakeTensor.tolist
        assign = torch.nn.Module.__setattr__

        def setattr_(module: torch.nn.Module, name: str, value: Any) -> None:
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            new = getattr(module, name, None) is not value
            if new and not is_tracers(frame):  # the other side would see it
                self._listed.refuse_within(f"{name} is assigned", describe_frame(frame))
                if open_ := self._conversions.open_in(frame):
                    self._conversions.refuse(*open_)
                    raise _Again
            assign(module, name, value)

        with (
            Hits(),
            self._constants.numbers(),
            self._listed.chosen(_is_asked),
            patch.object(FakeTensor, "__iter__", iter_),
            patch.object(FakeTensor, "__bool__", bool_),
            patch.object(FakeTensor, "item", item_),
            patch.object(FakeTensor, "tolist", tolist_),
            patch.object(torch.SymBool, "__bool__", symbol_),
            patch.object(torch.nn.Module, "__setattr__", setattr_),
        ):
            yield

    def _answer(self, x: torch.Tensor, asking: FrameType) -> bool:
        """What Python is told of `x`. Raises _Again if that is not asked any more next time."""
        constant = self._constants.value(x) if x.numel() == 1 else None
        if constant is not None:
            return any(pytree.tree_leaves(constant))
        frame = users_frame(asking)
        if is_assert(frame):
            return self._granted(x, frame)
        place = place_of(asking)
        if (only := self._checks.answer(place)) is not None:
            return self._granted(x, frame, only)
        if self._conversions.convert(frame.f_code, frame.f_lineno):
            raise _Again
        self._listed.refuse_within("a Python `if` on a tensor", describe_frame(frame))
        if open_ := self._conversions.open_in(frame):  # the rest of the model is no part of a side
            self._conversions.refuse(*open_)
            raise _Again
        if loop := self._conversions.loop_of(frame):
            raise loop.refusal(
                f"has a Python `if` on a tensor that cannot be a branch, at {describe_frame(frame)}: select with torch.where"
            )
        self.where = describe_frame(frame)
        if any(i.opname == "STORE_GLOBAL" for i in dis.get_instructions(frame.f_code)):
            raise CaptureError(
                f"at {self.where}: this depends on a tensor's value, in a function that assigns a global name:"
                " it cannot be traced both ways. Express the choice with tensors (torch.where, torch.cond)"
            )
        if self._met == MOST:  # a loop may have no other end
            raise self.too_many()
        marks.fork(marks.truth(x))
        if self._met == len(self.answers):
            self.answers.append(False)
        self._met += 1
        self._asked = place
        return self.answers[self._met - 1]

    def _granted(self, x: torch.Tensor, frame: FrameType, holds: bool = True) -> bool:
        """What is asserted of `x`; each call asks, but for an assertion on a side of an `if`."""
        if self._conversions.open_in(frame) is self._conversions.loop_of(frame) is None:
            marks.known(marks.truth(x).reshape(1), [int(holds)], marks.ASSERTED)
        return holds


def _number(x: torch.Tensor) -> torch.Tensor:
    """The number in `x`, in the type that Python would have."""
    wide = torch.float64 if x.is_floating_point() else torch.int64
    return number(x.reshape(()).to(torch.bool if x.dtype is torch.bool else wide))


def _is_asked(x: FakeTensor, frame: FrameType) -> bool:
    """Whether a model asks about a value that depends on its data, and not PyTorch's tracer."""
    return x.constant is None and not is_tracers(frame)
