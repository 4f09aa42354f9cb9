"""Compares what a model is lowered to with the model itself, through the reference evaluator."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from monotile.frontends.torch.capture import Captured, capture
from monotile.frontends.torch.types import to_numpy
from monotile.ir.evaluate import evaluate
from monotile.ir.signature import AliasLeaf, OutputLeaf, TensorLeaf, ValueLeaf
from monotile.ir.verify import verify

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Of(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Tensor) -> Any:
        return self.function(*x)


def run(captured: Captured, args: Any, kwargs: Any) -> list[Any]:
    """The leaves of the result."""
    leaves = pytree.tree_leaves((args, kwargs))
    values: dict[str, Any] = {k: to_numpy(v) for k, v in captured.parameters.items()}
    values |= captured.constants
    for leaf, s in zip(leaves, captured.signature.inputs, strict=True):
        if isinstance(s, TensorLeaf):
            values[s.tensor.name] = to_numpy(leaf)
    outs = evaluate(captured.program, values)
    found: list[Any] = []
    for s in captured.signature.outputs:
        match s:
            case OutputLeaf(index):
                found.append(outs[index])
            case AliasLeaf(leaf):
                found.append(to_numpy(leaves[leaf]))
            case ValueLeaf(value):
                found.append(value)
    return found


def close(found: Any, want: Any, name: str = "", tolerance: float | None = None) -> None:
    """Same type and shape, and values within a tolerance that goes with the type."""
    if not isinstance(want, torch.Tensor):
        assert found == want, name
        return
    expected = to_numpy(want)
    assert found.dtype == expected.dtype, f"{name}: {found.dtype}, not {expected.dtype}"
    assert found.shape == expected.shape, f"{name}: {found.shape}, not {expected.shape}"
    by = tolerance or TOLERANCE.get(want.dtype, 0.0)
    if want.dtype in TOLERANCE:
        with np.errstate(invalid="ignore"):  # PyTorch makes signalling NaN of 8-bit floats
            a, b = found.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=by, atol=by, err_msg=name)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=name)


def check(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    tolerance: float | None = None,
) -> Captured:
    """Lower `model`, verify the Program, and compare its results with the model's."""
    captured = capture(model, args, kwargs)
    verify(captured.program)
    with torch.no_grad():
        want = model(*args, **(kwargs or {}))
    leaves, tree = pytree.tree_flatten(want)
    assert tree == captured.signature.output_tree
    names = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(want)[0]]
    found = run(captured, args, kwargs or {})
    for f, w, name in zip(found, leaves, names, strict=True):
        close(f, w, name, tolerance)
    return captured


class Operators(nn.Module):
    """Gives every function's result by its name, so that one capture tests many operators."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *args: torch.Tensor) -> dict[str, Any]:
        return {name: f(*args) for name, f in self.functions.items()}


def check_operators(
    functions: Mapping[str, Callable[..., Any]],
    *args: torch.Tensor,
    tolerance: float | None = None,
) -> None:
    check(Operators(functions), args, tolerance=tolerance)
