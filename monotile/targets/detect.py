"""The `Target` for a target name, on this machine."""

import torch

from monotile.config import Options
from monotile.errors import TargetError
from monotile.targets.backend import Backend
from monotile.targets.registry import BACKENDS, backend_of
from monotile.targets.target import Target


def detect_target(spec: str, options: Options) -> Target:
    """The Target that `spec` names.

    "auto": the current GPU if there is one that Monotile compiles for, else the CPU. "cpu": the cores
    that this process may use. "cuda": the current GPU. "cuda:sm_90a" and its like: that architecture, with a
    GPU of it or without. With `Options(profile=True)` a GPU has room for a worker's notes set aside.
    Raises TargetError for an unknown name, "cuda" without a GPU, more workers than the machine has.
    """
    if spec == "auto":
        return kind_of(spec).detect("", options)
    kind, colon, name = spec.partition(":")
    backend = BACKENDS.get(kind)
    if backend is None or bool(colon) != bool(name):
        raise _unknown(spec)
    if name and name.isdigit():
        raise TargetError(
            f'"{spec}" is a device, not a target. Move the model there (model.to("{spec}")) and compile'
            f' with target="{kind}"'
        )
    if name and not backend.names:
        raise _unknown(spec)
    return backend.detect(name, options)


def kind_of(spec: str) -> Backend:
    """The kind of target that `spec`, a kind's name or "auto", means. Raises TargetError for another."""
    if spec == "auto":
        return next(b for b in BACKENDS.values() if b.present())
    if spec not in BACKENDS:
        raise _unknown(spec)
    return BACKENDS[spec]


def _unknown(spec: str) -> TargetError:
    kinds = ", ".join(f'"{kind}"' for kind in ("auto", *BACKENDS))
    names = ", ".join(f'"{b.kind}:{name}"' for b in BACKENDS.values() for name in b.names)
    return TargetError(
        f'unknown target "{spec}". There are {kinds} and, to compile without such a machine, {names}'
    )


def device_of(spec: str, options: Options) -> torch.device:
    """The device on which a model has to be to be compiled for `spec` and run: the current GPU, or the CPU."""
    return backend_of(detect_target(spec, options)).home()
