"""Monotile compiles a whole PyTorch model into one kernel.

Importing it does nothing but name what it offers: no torch, no CUDA context, no environment change,
no log handler. Each name is loaded when it is first used (PEP 562).
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monotile.compile import compile
    from monotile.config import Options
    from monotile.dynamo.explain import Explanation, explain
    from monotile.errors import (
        BuildError,
        CaptureError,
        ChoiceError,
        IndexOutOfRangeError,
        InputError,
        InternalError,
        MonotileError,
        PlanError,
        ScheduleError,
        TargetError,
        UnsupportedOperatorError,
        VerificationError,
    )
    from monotile.frontends.torch.sparse import sparse
    from monotile.generation.batch import BatchGenerator
    from monotile.generation.generator import Generator, generator
    from monotile.packing.checkpoints import load_packed
    from monotile.packing.pack import pack
    from monotile.packing.report import PackingReport
    from monotile.runtime.module import CompiledModule, load

__version__ = "0.1.0"

_HOME = {
    "compile": "monotile.compile",
    "Options": "monotile.config",
    "CompiledModule": "monotile.runtime.module",
    "Explanation": "monotile.dynamo.explain",
    "explain": "monotile.dynamo.explain",
    "BatchGenerator": "monotile.generation.batch",
    "Generator": "monotile.generation.generator",
    "generator": "monotile.generation.generator",
    "load": "monotile.runtime.module",
    "load_packed": "monotile.packing.checkpoints",
    "sparse": "monotile.frontends.torch.sparse",
    "pack": "monotile.packing.pack",
    "PackingReport": "monotile.packing.report",
    "BuildError": "monotile.errors",
    "CaptureError": "monotile.errors",
    "ChoiceError": "monotile.errors",
    "IndexOutOfRangeError": "monotile.errors",
    "InputError": "monotile.errors",
    "InternalError": "monotile.errors",
    "MonotileError": "monotile.errors",
    "PlanError": "monotile.errors",
    "ScheduleError": "monotile.errors",
    "TargetError": "monotile.errors",
    "UnsupportedOperatorError": "monotile.errors",
    "VerificationError": "monotile.errors",
}

__all__ = [
    "BatchGenerator",
    "BuildError",
    "CaptureError",
    "ChoiceError",
    "CompiledModule",
    "Explanation",
    "Generator",
    "IndexOutOfRangeError",
    "InputError",
    "InternalError",
    "MonotileError",
    "Options",
    "PackingReport",
    "PlanError",
    "ScheduleError",
    "TargetError",
    "UnsupportedOperatorError",
    "VerificationError",
    "compile",
    "explain",
    "generator",
    "load",
    "load_packed",
    "pack",
    "sparse",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


class _Package(ModuleType):
    """`monotile.compile` is the function, also after something has imported the module of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
