"""The user's source line of an operator."""

import dis
import linecache
import os
import re
import sysconfig
import traceback
from itertools import islice
from pathlib import Path
from types import FrameType

import sympy
import torch

_PYTHON = sysconfig.get_path("stdlib") + os.sep
_PYTORCH = tuple(x.__path__[0] + os.sep for x in (torch, sympy))
_DYNAMO = str(Path(__file__).parents[2] / "dynamo") + os.sep
_OWN = tuple(
    os.path.join(os.path.dirname(__file__), n)
    for n in (
        "callables.py",
        "export.py",
        "branches/paths.py",
        "branches/nonzero_loops.py",
        "branches/module_lists.py",
        "branches/markers.py",
        "branches/selection.py",
        "loops/",
        "numbers/constants.py",
        "numbers/tensor_fills.py",
        "numbers/tensor_indices.py",
        "numbers/example_values.py",
        "numbers/symbolic_reads.py",
        "sizes/guards.py",
        "sizes/range_export.py",
        "sizes/symbolic_keys.py",
        "sizes/symbolic_builtins.py",
        "sizes/symbolic_operators.py",
        "sizes/antialiasing.py",
        "sizes/empty_sizes.py",
        "sizes/open_pools.py",
        "sizes/signals.py",
        "sizes/dtype_arguments.py",
        "sizes/view_shapes.py",
        "sizes/quotients.py",
        "tracing/as_eager.py",
        "tracing/assigned_data.py",
        "tracing/assigned_tensors.py",
        "tracing/type_and_len.py",
        "tracing/byte_masks.py",
        "tracing/overrides.py",
        "tracing/batch_statistics.py",
        "tracing/bincount.py",
        "tracing/derivatives.py",
        "tracing/comparisons.py",
        "tracing/extrema.py",
        "tracing/failed_calls.py",
        "tracing/flex_attention.py",
        "tracing/half_fourier.py",
        "tracing/least_squares.py",
        "tracing/module_to.py",
        "tracing/next_call.py",
        "tracing/packed_sequences.py",
        "tracing/size_arguments.py",
        "tracing/sparse_tensors.py",
    )
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n[ \t]*([^\n]*)')

HOLDERS = (
    "monotile_holders"  # meta of a graph module: by placeholder, the tensor subclass that held it
)


def is_users(path: str) -> bool:
    """Whether a file belongs neither to PyTorch and its sympy nor to Monotile, nor to Python."""
    own = path.startswith((*_PYTORCH, _DYNAMO, *_OWN, "<"))
    return not own and not (path.startswith(_PYTHON) and "site-packages" not in path)


def users_frame(frame: FrameType) -> FrameType:
    """The user's frame that `frame` belongs to, or the outermost one."""
    while not is_users(frame.f_code.co_filename) and frame.f_back:
        frame = frame.f_back
    return frame


def asking_frame(frame: FrameType) -> FrameType:
    """The innermost calling frame that belongs neither to Monotile nor to PyTorch's tracer."""
    between = ("torch.overrides", "torch._tensor")
    while frame.f_back and (
        is_tracers(frame)
        or frame.f_globals.get("__name__") in between
        or frame.f_code.co_filename.startswith(_OWN)
    ):
        frame = frame.f_back
    return frame


def is_tracers(frame: FrameType) -> bool:
    """Whether it is a frame of PyTorch's tracer; its forms of Python's `min` and `max` belong to their callers."""
    name = frame.f_globals.get("__name__", "")
    tracers = name.startswith(("torch._", "torch.fx", "torch.export", "torch.utils"))
    return tracers and frame.f_code.co_name != "_tensor_min_max"


def is_assert(frame: FrameType) -> bool:
    """Whether `frame` is evaluating the condition of an `assert`."""
    rest = (i for i in dis.get_instructions(frame.f_code) if i.offset >= frame.f_lasti)
    asking = [i for i in islice(rest, 4) if i.opname not in ("CALL", "TO_BOOL")]
    if len(asking) < 2 or not asking[0].opname.endswith("IF_TRUE"):
        return False
    return asking[1].opname == "LOAD_ASSERTION_ERROR" or asking[1].argval is AssertionError


def describe_line(path: str, line: int | str, function: str, code: str) -> str:
    where = f"{os.path.basename(path)}:{line}, in {function}"
    return f"{where}: {code.strip()}" if code.strip() else where


def describe_frame(frame: FrameType) -> str:
    code, line = frame.f_code, frame.f_lineno
    text = linecache.getline(code.co_filename, line)
    return describe_line(code.co_filename, line, code.co_name, text)


def origin(stack_trace: str | None) -> str:
    """The innermost line outside PyTorch, as "file.py:123, in forward: code"; "" if there is none."""
    for path, line, function, code in reversed(_FRAME.findall(stack_trace or "")):
        if is_users(path):
            return describe_line(path, line, function, code)
    return ""


def raised_at(error: BaseException) -> str:
    """The same for the line that raised `error`: the innermost one below PyTorch's tracer."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [k for k, f in enumerate(frames) if not is_users(f.filename)]
    below = frames[inside[0] :] if inside else frames
    for f in reversed(below):
        if is_users(f.filename):
            return describe_line(f.filename, f.lineno or 0, f.name, f.line or "")
    return ""
