"""Loads a model named on the command line: an exported program in a file, or the result of a Python function."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from monotile.errors import InputError
from monotile.runtime.reference import Call, call_of, map_tensors

Model = torch.nn.Module | ExportedProgram


def load_model(
    spec: str, dtype: str | None, arguments: Mapping[str, Any] | None = None
) -> tuple[Model, Call]:
    """The model that `spec` names and its example arguments.

    spec: a .pt2 file, or "module:function", where function() returns (model, args) or (model, args, kwargs).
    dtype: of parameters and floating-point arguments, such as "float16"; None: unchanged.
    arguments: further arguments of the function, such as a batch size.
    Raises InputError if there is no such model, or the dtype is not possible.
    """
    if spec.endswith(".pt2"):
        if arguments:
            raise InputError(
                f"{spec} was exported for fixed sizes: it takes no {', '.join(arguments)}"
            )
        return _exported(Path(spec), dtype)
    module, _, name = spec.partition(":")
    if not name:
        raise InputError(
            f'"{spec}" is not a model: give the name of an example, a .pt2 file, or "module:function", where'
            " function() returns (model, args)"
        )
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f'"{spec}" cannot be imported: {error}') from error
    return _made(spec, make, _dtype(dtype), dict(arguments or {}))


def _exported(path: Path, dtype: str | None) -> tuple[Model, Call]:
    if dtype is not None:
        raise InputError(
            f"the dtypes of {path} are fixed in its graph: export the model in {dtype} instead"
        )
    try:
        exported = torch.export.load(path)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{path} cannot be loaded: {error}") from error
    if exported.example_inputs is None:
        raise InputError(f"{path} has no example inputs: export the model again with them")
    return exported, call_of(*exported.example_inputs)


def _made(
    spec: str, make: Callable[..., Any], dtype: torch.dtype | None, arguments: dict[str, Any]
) -> tuple[Model, Call]:
    try:
        takes = inspect.signature(make).parameters
    except (TypeError, ValueError):  # not callable, or written in C
        takes: Mapping[str, inspect.Parameter] = {}
    if not callable(make):
        raise InputError(f"{spec} is not a function")
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in takes.values())
    unknown = [name for name in arguments if name not in takes]
    if unknown and not anything:
        raise InputError(f"{spec} takes no {', '.join(unknown)}")
    takes_dtype = "dtype" in takes
    if dtype is not None and takes_dtype:
        arguments = {"dtype": dtype, **arguments}
    made = make(**arguments)
    match made:
        case (torch.nn.Module() as model, tuple() | list() as args):
            call = call_of(args)
        case (torch.nn.Module() as model, tuple() | list() as args, dict() as kwargs):
            call = call_of(args, kwargs)
        case _:
            raise InputError(f"{spec}() must return (model, args) or (model, args, kwargs)")
    if dtype is not None and not takes_dtype:
        model = model.to(dtype)
        call = map_tensors(call, lambda x: x.to(dtype) if x.is_floating_point() else x)
    return model, call


def _dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise InputError(
            f'"{name}" is not a floating-point dtype: use float32, float16 or bfloat16'
        )
    return found
