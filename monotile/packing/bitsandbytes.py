"""Layers that bitsandbytes packed as NF4: weight = table[code] * absmax."""

import json
from typing import Any

import torch
from torch import Tensor

from monotile.packing.codebook import NormalFloat
from monotile.packing.parts import HALVES, PackedWeight, Parts

STATE = "weight.quant_state.bitsandbytes__nf4"


def read_nf4(parts: Parts) -> PackedWeight:
    """weight: uint8 [n * k / 2, 1], with the first element of a byte in its high half. weight.absmax: one per block of neighbours; float32,
    or uint8 that is quantised itself (double quantisation). weight.quant_map: the table. STATE: JSON as bytes."""
    n, k = parts.n, parts.k
    state = _state(parts)
    block = state["blocksize"]
    if list(state["shape"]) != [n, k]:
        raise parts.wrong(f"its packed weight is {' × '.join(map(str, state['shape']))}")
    if k % block or k % 2:
        raise parts.wrong(
            f"blocks of {block} do not divide its {k} inputs, so that some lie in two rows: this is not supported"
        )
    dtype = getattr(torch, str(state["dtype"]), None)
    if dtype not in HALVES:
        raise parts.wrong(f"{STATE} has the dtype {state['dtype']}")
    found = parts.take("weight", [n * k // 2, 1], torch.uint8).view(n, k // 2)
    tensors = {
        "codes": (found << 4) | (found >> 4),
        "absmax": _absmax(parts, state, n * k // block).view(n, k // block),
        "table": parts.take("weight.quant_map", [16], torch.float32),
    }
    return PackedWeight(NormalFloat("nf4", block), tensors, dtype)


def _state(parts: Parts) -> dict[str, Any]:
    try:
        state = json.loads(bytes(parts.tensors[STATE].tolist()))
        missing = {"blocksize", "shape", "dtype"} - state.keys()
    except (ValueError, AttributeError, TypeError) as error:
        raise parts.wrong(f"{STATE} is damaged: {error}") from error
    if missing:
        raise parts.wrong(f"{STATE} lacks {', '.join(sorted(missing))}")
    return state


def _absmax(parts: Parts, state: dict[str, Any], blocks: int) -> Tensor:
    """float32 [blocks]."""
    if "nested_blocksize" not in state:
        return parts.take("weight.absmax", [blocks], torch.float32)
    codes = parts.take("weight.absmax", [blocks], torch.uint8)
    size = state["nested_blocksize"]
    outer = parts.take("weight.nested_absmax", [-(-blocks // size)], torch.float32)
    table = parts.take("weight.nested_quant_map", [256], torch.float32)
    scale = outer.repeat_interleave(size)[:blocks]
    return table[codes.long()] * scale + state.get("nested_offset", 0.0)
