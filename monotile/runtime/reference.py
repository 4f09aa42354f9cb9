"""Random inputs, PyTorch's answer in float64, and the distance of another answer from it."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from monotile.runtime.objects import flatten_objects
from monotile.runtime.pytrees import same_structure

Call = tuple[tuple[Any, ...], dict[str, Any]]


def to_device(
    model: torch.nn.Module | ExportedProgram, call: Call, device: torch.device
) -> tuple[torch.nn.Module | ExportedProgram, Call]:
    """The model and its arguments on `device`; an ExportedProgram stays where it was exported."""
    if isinstance(model, ExportedProgram):
        return model, call
    return model.to(device), map_tensors(call, lambda x: x.to(device))


def random_inputs(call: Call, seed: int = 0) -> Call:
    """Random arguments like those of `call`: normally distributed floats, and integers within the range of the
    example's (they may be indices)."""
    generator = torch.Generator().manual_seed(seed)

    def one(x: torch.Tensor) -> torch.Tensor:
        if x.is_floating_point():
            return torch.randn(x.shape, generator=generator).to(x)
        if x.numel() == 0:
            return x
        low, high = int(x.min()), int(x.max())
        return torch.randint(low, high + 1, x.shape, generator=generator).to(x)

    return map_tensors(call, one)


def eager(model: torch.nn.Module | ExportedProgram, call: Call) -> Any:
    """PyTorch's answer, in the model's own dtypes."""
    args, kwargs = call
    with torch.no_grad():
        return runnable(model)(*args, **kwargs)


def runnable(model: torch.nn.Module | ExportedProgram) -> torch.nn.Module:
    return model.module(check_guards=False) if isinstance(model, ExportedProgram) else model


def eager_float64(model: torch.nn.Module | ExportedProgram, call: Call) -> Any | None:
    """PyTorch's answer in float64; None if the model does not run in it because it names dtypes explicitly."""
    if isinstance(model, ExportedProgram):
        return None  # its graph fixes the dtypes
    wide = copy.deepcopy(model).double()
    try:
        return eager(wide, map_tensors(call, lambda x: x.double() if x.is_floating_point() else x))
    except (RuntimeError, TypeError):
        return None


class Distance(msgspec.Struct, frozen=True):
    """absolute: largest difference. relative: absolute over the largest magnitude of the expected tensor; the maximum over
    all results. equal: structure, shapes, integers and the places of NaN and infinity agree.
    """

    absolute: float
    relative: float
    equal: bool


def distance(found: Any, expected: Any) -> Distance:
    a, tree_a = pytree.tree_flatten(flatten_objects(found))
    b, tree_b = pytree.tree_flatten(flatten_objects(expected))
    absolute = relative = 0.0
    equal = same_structure(tree_a, tree_b)
    for x, y in zip(a, b, strict=False):
        if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)):
            equal = equal and bool(x == y)
        elif x.shape != y.shape:
            equal = False
        elif not y.is_floating_point():
            equal = equal and torch.equal(x, y)
        elif y.numel() > 0:
            wide, exact = x.detach().double(), y.detach().double()
            finite = exact.isfinite()
            equal = equal and torch.equal(finite, wide.isfinite())
            equal = equal and torch.equal(wide[~finite].nan_to_num(), exact[~finite].nan_to_num())
            worst = float((wide - exact)[finite].abs().max()) if bool(finite.any()) else 0.0
            scale = float(exact[finite].abs().max()) if bool(finite.any()) else 0.0
            absolute = max(absolute, worst)
            relative = max(relative, worst / scale if scale else worst)
    return Distance(absolute, relative, equal)


def tolerance(model: torch.nn.Module | ExportedProgram, call: Call) -> float:
    """The tolerated relative distance of a whole network in its own dtypes from float64."""
    dtypes = {x.dtype for x in pytree.tree_leaves(call) if isinstance(x, torch.Tensor)}
    held = model.parameters() if isinstance(model, torch.nn.Module) else model.state_dict.values()
    dtypes |= {x.dtype for x in held}
    if torch.bfloat16 in dtypes:
        return 4e-2
    return 5e-3 if torch.float16 in dtypes else 1e-5 if torch.float32 in dtypes else 1e-12


def call_of(args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Call:
    return tuple(args), dict(kwargs or {})


def map_tensors(call: Call, f: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    """`call` with every tensor in it replaced."""

    def one(x: object) -> object:
        return f(x) if isinstance(x, torch.Tensor) else x

    mapped: Call = pytree.tree_map(one, call)
    return mapped
