"""Replaces the code of functions by converted code (`conversion.py`) during an export, and restores it afterwards."""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType

from monotile.frontends.torch.branches.conversion import converted, exits_beside
from monotile.frontends.torch.branches.selection import TracedIf
from monotile.frontends.torch.loops.traced_loop import TracedLoop
from monotile.frontends.torch.sizes.symbolic_builtins import SymbolicBuiltins, names_used

MAX_FUNCTIONS = 16  # limit of functions converted for one model


class Conversions:
    """The conversions of one model, by function and line, made as the export meets conditions that are tensors."""

    def __init__(self, most: int) -> None:
        self._max = most
        self._functions: dict[CodeType, list[FunctionType]] = {}  # by their original code
        self._lines: dict[CodeType, frozenset[int]] = {}
        self._loops: dict[CodeType, frozenset[int]] = {}  # the heads of loops
        self._own: dict[CodeType, CodeType] = {}  # the original code of converted code
        self._refused: set[tuple[CodeType, int]] = set()
        self._names = SymbolicBuiltins()

    def convert(self, code: CodeType, line: int) -> bool:
        """Converts the statement at `line` of the function that now has `code`. Returns whether that was possible and new."""
        own = self._own.get(code, code)
        lines = self._lines.get(own, frozenset())
        if line in lines or (own, line) in self._refused:
            return False
        if own not in self._lines and len(self._lines) >= self._max:
            return False
        loops = self._loops.get(own, frozenset())
        if self._set(own, lines | {line}, loops):
            return True
        more = {k for k in exits_beside(own, line) if (own, k) not in self._refused}
        if not more <= {line} and self._set(own, lines | {line} | more, loops):
            return True
        self._refused.add((own, line))
        return False

    def keeps_dynamic(self, frame: FrameType) -> bool:
        """Whether the size that `frame` turns into a number stays dynamic from now on: the frame begins a loop, which is converted, or calls a
        builtin that is replaced by a symbolic one (`sizes/symbolic_builtins.py`)."""
        return self._names.replace_in(frame) or self.convert_loop(
            self.own(frame.f_code), frame.f_lineno
        )

    def replaces(self, frame: FrameType) -> bool:
        """Whether `frame` calls a builtin that is replaced by a symbolic one from now on."""
        return self._names.replace_in(frame)

    def replace_builtins(self, frame: FrameType) -> bool:
        """Replaces `int`, `float` and the like where `frame` is to make a number of a tensor, and converts the loop over a `range` that it begins there.
        Returns whether that was possible and new."""
        if self._names.replace_in(frame):
            return True
        return "range" in names_used(frame) and self.convert(frame.f_code, frame.f_lineno)

    def own(self, code: CodeType) -> CodeType:
        """The original code of a function that now has `code`."""
        return self._own.get(code, code)

    def convert_loop(self, own: CodeType, line: int) -> bool:
        """Converts the loop whose head is at `line` of the function with the original code `own`. Returns whether that was possible and new."""
        heads = self._loops.get(own, frozenset())
        if line in heads or (own, line) in self._refused:
            return False
        if not self._set(own, self._lines.get(own, frozenset()), heads | {line}):
            self._refused.add((own, line))
            return False
        return True

    def refuse(self, code: CodeType, line: int) -> None:
        """Undoes the conversion at `line` permanently."""
        own = self._own[code]
        self._refused.add((own, line))
        near = {k for k in self._lines[own] if (own, k) not in self._refused}
        heads = self._loops.get(own, frozenset())
        if not self._set(own, frozenset(near), heads):
            self._set(own, frozenset(), heads)

    def if_of(self, frame: FrameType | None) -> tuple[CodeType, int] | None:
        """The innermost converted `if` in whose branch `frame` or a caller runs: the function's code and the line."""
        lines = list[int]()  # of conditional expressions
        while frame is not None:
            if frame.f_code is TracedIf.value.__code__:
                lines.append(frame.f_locals["self"].line)
            elif frame.f_code in self._own:
                open_ = [x for x in frame.f_locals.values() if isinstance(x, TracedIf) and x.open]
                lines += [max(x.line for x in open_)] if open_ else []
                if lines:
                    return frame.f_code, lines[0]
            frame = frame.f_back
        return None

    def loop_of(self, frame: FrameType | None) -> TracedLoop | None:
        """The innermost loop in whose traced iteration `frame` or a caller runs."""
        while frame is not None:
            if frame.f_code in self._own:
                open_ = [x for x in frame.f_locals.values() if isinstance(x, TracedLoop) and x.open]
                if open_:
                    return open_[-1]
            frame = frame.f_back
        return None

    def raised_in(self, error: BaseException) -> CodeType:
        """The converted code of the innermost function in the traceback of `error`."""
        trace, found = error.__traceback__, list[CodeType]()
        while trace is not None:
            found.append(trace.tb_frame.f_code)
            trace = trace.tb_next
        return next(code for code in reversed(found) if code in self._own)

    def restore(self) -> None:
        self._names.restore()
        for own in self._functions:
            self._replace(own, own)

    def _set(self, own: CodeType, lines: frozenset[int], heads: frozenset[int]) -> bool:
        new = converted(own, lines, heads) if lines or heads else own
        if new is None:
            return False
        if own not in self._functions:
            known = gc.get_referrers(own)
            self._functions[own] = [
                f for f in known if isinstance(f, FunctionType) and f.__code__ is own
            ]
        if lines or own in self._lines:
            self._lines[own] = lines
        self._loops[own] = heads
        self._replace(own, new)
        return True

    def _replace(self, own: CodeType, new: CodeType) -> None:
        if new is not own:
            self._own[new] = own
        for function in self._functions[own]:
            function.__code__ = new


@contextmanager
def function_conversions(most: int = MAX_FUNCTIONS) -> Generator[Conversions]:
    """Within, at most `most` functions are converted. Restores their code."""
    found = Conversions(most)
    try:
        yield found
    finally:
        found.restore()
