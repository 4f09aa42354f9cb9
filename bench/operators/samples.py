"""PyTorch's operator database: which entries count, and their samples as modules to compile."""

import importlib
import random
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree

# The families that are left out, by the beginning of an operator's name, or by its whole name.
_FAMILIES = {
    "linear algebra": "linalg. cholesky cholesky_inverse cholesky_solve geqrf logdet lu lu_solve lu_unpack"
    " matrix_exp norm.nuc ormqr pca_lowrank pinverse qr svd svd_lowrank triangular_solve",
    "FFT": "fft. stft istft",
    "sparse": "sparse. to_sparse",
    "complex": "cdouble cfloat chalf complex polar view_as_complex",
    "special": "special.",
}
_UNINITIALISED = (
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_"
)
_GPU_ONLY = ("jiterator_", "bmm.triton_optimized")


@dataclass(frozen=True, slots=True)
class Sample:
    """One call of an operator: the tensors in it, and how to make the call of such tensors."""

    tensors: tuple[torch.Tensor, ...]
    call: Callable[[Sequence[torch.Tensor]], Any]


class Calls(torch.nn.Module):
    """All samples of an operator as one module: the samples' tensors in, the samples' results out."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__()
        self.calls = [s.call for s in samples]

    def forward(self, *given: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        return tuple(call(tensors) for call, tensors in zip(self.calls, given, strict=True))


def database() -> dict[str, Any]:
    """The entries that take float32, by name and variant."""
    _stand_in_for_expecttest()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entries = importlib.import_module("torch.testing._internal.common_methods_invocations")

    named = {f"{e.name}.{e.variant_test_name}".rstrip("."): e for e in entries.op_db}
    return {name: e for name, e in named.items() if torch.float32 in e.dtypes}


def family(name: str) -> str | None:
    """The family that an operator belongs to, if that is left out."""
    for title, members in _FAMILIES.items():
        for m in members.split():
            if name == m or (m.endswith(".") and name.startswith(m)):
                return title
    return None


def excluded(name: str, device: str) -> str | None:
    """Why an operator as a whole has no result that could be compared; None if it has one."""
    if name in _UNINITIALISED.split():
        return "its result is uninitialised memory"
    if name.startswith(_GPU_ONLY) and device == "cpu":
        return "PyTorch has it for GPUs alone"
    return None


def samples(entry: Any, device: str) -> list[Sample]:
    """The samples of one entry in float32, the same ones in every run."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    given = entry.sample_inputs(device, torch.float32, requires_grad=False)
    return [_sample(entry.op, s) for s in given]


def spread(every: list[Sample], limit: int | None) -> list[Sample]:
    """`limit` of them, from the first to the last ones; all where there is none."""
    if limit is None or len(every) <= limit:
        return every
    return [every[k * len(every) // limit] for k in range(limit)]


def _sample(op: Callable[..., Any], given: Any) -> Sample:
    leaves, tree = pytree.tree_flatten(((given.input, *given.args), given.kwargs))
    where = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(tensors: Sequence[torch.Tensor]) -> Any:
        held = list(leaves)
        for k, t in zip(where, tensors, strict=True):
            held[k] = t.clone()  # some operators change their argument
        args, kwargs = pytree.tree_unflatten(held, tree)
        return op(*args, **kwargs)

    return Sample(tuple(leaves[k].detach() for k in where), call)


def _stand_in_for_expecttest() -> None:
    """PyTorch's tests derive a class from this package's, which nothing here needs."""
    try:
        __import__("expecttest")
    except ImportError:
        module: Any = types.ModuleType("expecttest")
        module.TestCase = unittest.TestCase
        sys.modules["expecttest"] = module
