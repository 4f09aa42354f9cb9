"""Synthetic checkpoints, written and decoded in numpy as their sources do it, one element at a time."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.packing.oracle import NF4

Array = NDArray[Any]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def word(codes: Iterable[Any], bits: int) -> np.int32:
    """The first code in the lowest bits."""
    whole = sum(int(c) << (i * bits) for i, c in enumerate(codes))
    return np.uint32(whole).view(np.int32)


def gptq(n: int, k: int, bits: int, group: int, index: Sequence[int] | None = None, seed: int = 0, stored: int = 1) -> tuple[dict[str, Tensor], Array]:  # fmt: skip
    """A layer and its weight, [n, k] float16. index: the group of each input. stored: what is taken off zeros."""
    rng = np.random.default_rng(seed)
    per, groups = 32 // bits, k // group
    codes = rng.integers(0, 1 << bits, (k, n))
    zeros = rng.integers(1, 1 << bits, (groups, n))
    scales = rng.uniform(0.01, 0.1, (groups, n)).astype(np.float16)
    of = list(index) if index is not None else [i // group for i in range(k)]
    qweight = [[word(codes[r : r + per, c], bits) for c in range(n)] for r in range(0, k, per)]
    less = zeros - stored
    qzeros = [[word(less[g, c : c + per], bits) for c in range(0, n, per)] for g in range(groups)]
    tensors = {
        "qweight": torch.from_numpy(np.array(qweight)),
        "qzeros": torch.from_numpy(np.array(qzeros)),
        "scales": torch.from_numpy(scales),
        "g_idx": torch.tensor(of, dtype=torch.int32),
    }
    weight = np.empty((n, k), np.float16)
    for (row, column), _ in np.ndenumerate(weight):
        g = of[column]
        step = np.float16(int(codes[column, row]) - int(zeros[g, row]))
        weight[row, column] = step * scales[g, row]
    return tensors, weight


def awq(n: int, k: int, group: int) -> tuple[dict[str, Tensor], Array]:
    """A layer and its weight, [n, k] float16."""
    rng = np.random.default_rng(1)
    codes, zeros = rng.integers(0, 16, (k, n)), rng.integers(0, 16, (k // group, n))
    scales = rng.uniform(0.01, 0.1, (k // group, n)).astype(np.float16)

    def words(values: Array) -> Tensor:
        rows = [
            [word([row[c + i] for i in AWQ_ORDER], 4) for c in range(0, n, 8)] for row in values
        ]
        return torch.from_numpy(np.array(rows))

    tensors = {
        "qweight": words(codes),
        "qzeros": words(zeros),
        "scales": torch.from_numpy(scales),
    }
    weight = np.empty((n, k), np.float16)
    for (row, column), _ in np.ndenumerate(weight):
        g = column // group
        step = np.float16(int(codes[column, row]) - int(zeros[g, row]))
        weight[row, column] = step * scales[g, row]
    return tensors, weight


def nf4(n: int, k: int, dtype: str, nested: bool) -> tuple[dict[str, Tensor], Array]:
    """A layer and its weight, [n, k] float32 before it is rounded to dtype."""
    rng = np.random.default_rng(2)
    codes, block = rng.integers(0, 16, n * k), 64
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": block, "dtype": dtype, "shape": [n, k]}  # fmt: skip
    halves = [int(codes[i]) << 4 | int(codes[i + 1]) for i in range(0, n * k, 2)]
    tensors = {"weight": torch.tensor(halves, dtype=torch.uint8).view(-1, 1)}
    blocks = n * k // block
    absmax = rng.uniform(0.1, 1, blocks).astype(np.float32)
    if nested:
        inner, size, offset = rng.integers(0, 256, blocks), 16, 0.3125
        table = np.linspace(-1, 1, 256, dtype=np.float32)
        outer = rng.uniform(0.1, 0.3, -(-blocks // size)).astype(np.float32)
        absmax = np.array(
            [table[c] * outer[b // size] + np.float32(offset) for b, c in enumerate(inner)],
            np.float32,
        )
        state |= {"nested_blocksize": size, "nested_offset": offset, "nested_dtype": "float32"}
        tensors["weight.absmax"] = torch.from_numpy(inner.astype(np.uint8))
        tensors["weight.nested_absmax"] = torch.from_numpy(outer)
        tensors["weight.nested_quant_map"] = torch.from_numpy(table)
    else:
        tensors["weight.absmax"] = torch.from_numpy(absmax)
    tensors["weight.quant_map"] = torch.tensor(NF4)
    blob = list(json.dumps(state).encode())
    tensors["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(blob, dtype=torch.uint8)
    flat = [np.float32(NF4[c]) * absmax[i // block] for i, c in enumerate(codes)]
    return tensors, np.array(flat, np.float32).reshape(n, k)


def named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": t for name, t in tensors.items()}
