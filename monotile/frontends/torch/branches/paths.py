"""Exports a model with data-dependent control flow: all of its paths, as one graph.

`torch.export` cannot know the truth value of a tensor. Where Python asks for one, the `if` is converted if possible, so that the trace runs both
branches (`converted_functions.py`). Otherwise the trace is one path: it continues as if the value were false, and the model is traced again with the
value true. The common part of both paths is followed by a `torch.cond` of the rest of each (`merge.py`, `regions.py`).
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
from monotile.frontends.torch.branches import markers
from monotile.frontends.torch.branches.checks import Asked, Checks, site_of
from monotile.frontends.torch.branches.converted_functions import (
    MAX_FUNCTIONS,
    Conversions,
    function_conversions,
)
from monotile.frontends.torch.branches.merge import Answers, merge
from monotile.frontends.torch.branches.module_lists import ModuleEffectError, ModuleLists
from monotile.frontends.torch.branches.nonzero_loops import NonzeroTracker, mask_of
from monotile.frontends.torch.branches.regions import SideEffectError, outline
from monotile.frontends.torch.branches.selection import JoinError, TracedIf
from monotile.frontends.torch.loops.detection import LoopDetectedError, loops_detected
from monotile.frontends.torch.loops.long_loops import LongLoops
from monotile.frontends.torch.loops.tensor_numbers import number, stands_for_number
from monotile.frontends.torch.loops.traced_loop import TracedLoop
from monotile.frontends.torch.loops.traced_while import WhileLoopError
from monotile.frontends.torch.numbers.constants import Constants
from monotile.frontends.torch.numbers.symbolic_reads import tensors_read_symbolically
from monotile.frontends.torch.origin import (
    describe_frame,
    is_assert,
    is_tracers,
    raised_at,
    users_frame,
)
from monotile.frontends.torch.rewriting.lifted import lifted_once
from monotile.frontends.torch.rewriting.sharing import shared_as_run

MAX_PATHS = 32  # of one model
Export = Callable[[], ExportedProgram]


def single_path(export: Export) -> ExportedProgram:
    """The result of `export`, which traces a model with one path. Raises LoopDetectedError when a loop of dynamic length was converted."""
    with function_conversions() as known, _loops_detected(known):
        return export()


def _loops_detected(known: Conversions) -> AbstractContextManager[None]:
    """Detects loops of dynamic length, and long loops where these are traced once."""
    loops = TracedLoop.known
    long = LongLoops(known.convert_loop, known.own, loops.long).call if loops is not None else None
    return loops_detected(known.keeps_dynamic, known.replaces, long)


class TooManyPathsError(CaptureError):
    """A model has more paths than are traced."""


class UnconvertedIfError(CaptureError):
    """An `if` on a tensor in a loop of dynamic length cannot be a branch."""


class _RetraceError(BaseException):
    """A conversion was added or undone: the model has to be traced again."""


def all_paths(export: Export) -> ExportedProgram:
    """The result of `export`, which traces a model, with every `if` on a tensor's value as a branch. Raises CaptureError, and what `export` raises."""
    try:
        return _outlined(export, MAX_FUNCTIONS)
    except (TooManyPathsError, UnconvertedIfError) as many:
        try:  # fewer, if the numbers that a branch assigns need none of their own
            with patch.object(TracedIf, "joins_numbers", True):
                return _outlined(export, MAX_FUNCTIONS)
        except Exception:
            raise many from None
    except SideEffectError as leak:
        try:
            return _outlined(export, 0)
        except (TooManyPathsError, ModuleEffectError):
            raise leak from None


def _outlined(export: Export, most: int) -> ExportedProgram:
    """Converts at most `most` functions. Raises SideEffectError if the branches of a converted `if` have side effects that subgraphs cannot express."""
    known, refused = (Constants(), Checks()), list[CaptureError]()
    with function_conversions(most) as conversions, patch.object(TracedLoop, "peeled", set[str]()):
        while True:
            try:
                merged = merge(_paths(export, conversions, *known))
            except (_RetraceError, LoopDetectedError):
                continue
            except JoinError as e:
                conversions.refuse(conversions.raised_in(e), e.line)
                continue
            except WhileLoopError as e:
                conversions.refuse(conversions.raised_in(e), e.line)
                refused.append(e)
                continue
            except CaptureError as e:
                if not refused or isinstance(e, SideEffectError):
                    raise
                raise refused[-1] from e
            return outline(shared_as_run(lifted_once(merged)))


def _paths(
    export: Export, conversions: Conversions, constants: Constants, checks: Checks
) -> dict[Answers, ExportedProgram]:
    """All paths, by the answers at their forks."""
    found: dict[Answers, ExportedProgram] = {}
    todo: list[Answers] = [()]
    while todo:
        trace = _Trace(todo.pop(), conversions, constants, checks)
        try:
            with torch.no_grad(), trace.answered(), _loops_detected(conversions):
                exported = export()
        except Exception as e:
            if trace.checks_data(e):
                raise _RetraceError from e
            raise trace.failed(e) from e
        if not constants.are_unchanged(exported):
            raise _RetraceError
        if len(found) == MAX_PATHS:
            raise trace.too_many()
        found[tuple(trace.answers)] = exported
        todo += [(*trace.answers[:k], True) for k in range(trace.given, len(trace.answers))]
    return found


class _Trace:
    """One trace of the model. answers: at the forks so far, of which the first `given` were prescribed. where: the last fork."""

    def __init__(
        self, prefix: Answers, conversions: Conversions, constants: Constants, checks: Checks
    ) -> None:
        self.answers, self.given = list(prefix), len(prefix)
        self.where = ""
        self._forks = 0
        self._lists = ModuleLists()
        self._conversions, self._constants, self._checks = conversions, constants, checks
        self._asked: Asked | None = None  # at the last fork
        self._count = 0  # of the conditions so far
        self._mode: object = None  # the fake mode of the export

    def checks_data(self, error: Exception) -> bool:
        """Whether `error` shows that the answer at the last fork is impossible; it is remembered."""
        answered = self._asked
        return answered is not None and self._checks.learn(
            error, answered, self.answers[self._forks - 1]
        )

    def failed(self, error: Exception) -> Exception:
        """`error`, which this trace has raised, with the path that it has taken."""
        if isinstance(error, CaptureError) or not self._forks:
            return error
        at = raised_at(error)
        reason, *_ = str(error).strip().splitlines() or ["no reason given"]
        if "data-dependent" in str(error):
            advice = "A list's index, a text or a shape that a tensor's value decides cannot be in a kernel: return the tensor, and look it up after the model"
        else:
            advice = "Both branches have to be possible: a data check may be written with torch._check, which is dropped"
        return CaptureError(
            f"where a tensor's value is {self.answers[self._forks - 1]}, at {self.where}, the model fails"
            + (f", at {at}" if at else "")
            + f": {type(error).__name__}: {reason}. {advice}"
        )

    def too_many(self) -> TooManyPathsError:
        return TooManyPathsError(
            f"the model has more than {MAX_PATHS} paths that depend on a tensor's value, the last fork at"
            f" {self.where}: write it with torch.cond, or a loop with torch.while_loop, or let"
            ' torch.compile(model, backend="monotile") split it there'
        )

    @contextmanager
    def answered(self) -> Generator[None]:
        """Within, the truth of a traced tensor is asked here, and `item()` of one gives a tensor."""
        truth, item, symbol = FakeTensor.__bool__, FakeTensor.item, torch.SymBool.__bool__

        def bool_(x: FakeTensor) -> bool:
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            return self._answer(x, frame) if _is_data_dependent(x, frame) else truth(x)

        def symbol_(x: torch.SymBool) -> bool:
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            answered = markers.is_unknown(x) and not is_tracers(frame)
            return self._answer(markers.as_tensor(x), frame) if answered else symbol(x)

        def item_(x: FakeTensor) -> Any:
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            if not _is_data_dependent(x, frame) or x.numel() != 1 or x.is_complex():
                return item(x)
            constant = self._constants.value(x.reshape(()))
            return _number(x) if constant is None else constant

        def tolist_(x: FakeTensor) -> Any:
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            known = all(type(n) is int for n in x.shape)
            if not _is_data_dependent(x, frame) or not known or x.is_complex():
                return tolist(x)
            rows: list[Any] = list(x.unbind(0)) if x.ndim else []
            return [tolist_(row) for row in rows] if x.ndim else item_(x)

        def iter_(x: FakeTensor) -> Iterator[Any]:
            # A frame of `loops/detection.py` may be in between.
            frame = users_frame(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            if mask_of(x) is not None and self._conversions.convert(frame.f_code, frame.f_lineno):
                raise _RetraceError
            return iterate(x)

        iterate, tolist = FakeTensor.__iter__, FakeTensor.tolist
        assign = torch.nn.Module.__setattr__

        def setattr_(module: torch.nn.Module, name: str, value: Any) -> None:
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            new = getattr(module, name, None) is not value
            if new and not is_tracers(frame):  # the other branch would see it
                self._lists.refuse_within(f"{name} is assigned", describe_frame(frame))
                if open_ := self._conversions.if_of(frame):
                    self._conversions.refuse(*open_)
                    raise _RetraceError
            assign(module, name, value)

        with (
            self._numbers_read(),
            self._lists.tensors_index(_is_data_dependent),
            patch.object(FakeTensor, "__iter__", iter_),
            patch.object(FakeTensor, "__bool__", bool_),
            patch.object(FakeTensor, "item", item_),
            patch.object(FakeTensor, "tolist", tolist_),
            patch.object(torch.SymBool, "__bool__", symbol_),
            patch.object(torch.nn.Module, "__setattr__", setattr_),
        ):
            yield

    @contextmanager
    def _numbers_read(self) -> Generator[None]:
        """Within, numbers that Python makes of tensors are known, or symbolic."""
        with (
            NonzeroTracker(),
            tensors_read_symbolically(self._replace_builtins),
            self._constants.numbers(),
        ):
            yield

    def _replace_builtins(self, frame: FrameType) -> None:
        if self._conversions.replace_builtins(frame):
            raise _RetraceError

    def _begin(self, x: torch.Tensor) -> None:
        """Begins anew where `x` is of another export than the last condition: for a range of sizes there may be several."""
        mode = x.fake_mode if isinstance(x, FakeTensor) else None
        if mode is not self._mode:
            del self.answers[self.given :]
            self._mode, self._forks, self._count, self._asked = mode, 0, 0, None

    def _answer(self, x: torch.Tensor, asking: FrameType) -> bool:
        """The truth value of `x` for Python. Raises _RetraceError if the next trace does not ask for it any more."""
        self._begin(x)
        constant = self._constants.value(x) if x.numel() == 1 else None
        if constant is not None:
            return any(pytree.tree_leaves(constant))
        frame = users_frame(asking)
        if stands_for_number(x):  # `max` and `min` compare
            self._replace_builtins(frame)
        if is_assert(frame):
            return self._assert(x, frame)
        asked = Asked(site_of(asking), tuple(self.answers[: self._forks]), self._count)
        self._count += 1
        if (only := self._checks.answer(asked)) is not None:
            return self._assert(x, frame, only)
        if self._conversions.convert(frame.f_code, frame.f_lineno):
            raise _RetraceError
        self._lists.refuse_within("a Python `if` on a tensor", describe_frame(frame))
        if open_ := self._conversions.if_of(frame):  # the rest of the model is not part of a branch
            self._conversions.refuse(*open_)
            raise _RetraceError
        if loop := self._conversions.loop_of(frame):
            refusal = loop.refusal(
                f"has a Python `if` on a tensor that cannot be a branch, at {describe_frame(frame)}: select with torch.where"
            )
            whiles = isinstance(refusal, WhileLoopError)  # whose paths are traced instead
            raise refusal if whiles else UnconvertedIfError(str(refusal))
        self.where = describe_frame(frame)
        if any(i.opname == "STORE_GLOBAL" for i in dis.get_instructions(frame.f_code)):
            raise CaptureError(
                f"at {self.where}: this depends on a tensor's value, in a function that assigns a global name:"
                " its paths cannot be traced apart. Express the choice with tensors (torch.where, torch.cond)"
            )
        if self._forks == MAX_PATHS:  # a loop may never end otherwise
            raise self.too_many()
        markers.fork(markers.truth(x))
        if self._forks == len(self.answers):
            self.answers.append(False)
        self._forks += 1
        self._asked = asked
        return self.answers[self._forks - 1]

    def _assert(self, x: torch.Tensor, frame: FrameType, holds: bool = True) -> bool:
        """Asserts `x`; each call checks it, except for an assertion in a branch."""
        if self._conversions.if_of(frame) is self._conversions.loop_of(frame) is None:
            markers.guard(markers.truth(x).reshape(1), [int(holds)], markers.ASSERTED)
        return holds


def _number(x: torch.Tensor) -> torch.Tensor:
    """The number in `x`, of the dtype that corresponds to Python's type."""
    wide = torch.float64 if x.is_floating_point() else torch.int64
    return number(x.reshape(()).to(torch.bool if x.dtype is torch.bool else wide))


def _is_data_dependent(x: FakeTensor, frame: FrameType) -> bool:
    """Whether a model, and not PyTorch's tracer, uses a value that depends on its data."""
    return x.constant is None and not is_tracers(frame)
