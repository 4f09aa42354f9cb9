"""Where in the user's own code an operator comes from."""

import os
import re
import traceback

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n[ \t]*([^\n]*)')


def _foreign(path: str) -> bool:
    return path.startswith((_TORCH, "<"))


def _describe(path: str, line: int | str, function: str, code: str) -> str:
    where = f"{os.path.basename(path)}:{line}, in {function}"
    return f"{where}: {code.strip()}" if code.strip() else where


def origin(stack_trace: str | None) -> str:
    """The innermost line outside PyTorch, as "file.py:123, in forward: code"; "" if there is none."""
    for path, line, function, code in reversed(_FRAME.findall(stack_trace or "")):
        if not _foreign(path):
            return _describe(path, line, function, code)
    return ""


def raised_at(error: BaseException) -> str:
    """The same, of the line that raised `error`: the innermost one below PyTorch's tracer."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [k for k, f in enumerate(frames) if _foreign(f.filename)]
    below = frames[inside[0] :] if inside else frames
    for f in reversed(below):
        if not _foreign(f.filename):
            return _describe(f.filename, f.lineno or 0, f.name, f.line or "")
    return ""
