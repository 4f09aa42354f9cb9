"""Tensors that a call updates in place: inputs of the call and buffers of the model.

The kernel writes where it reads, so no other argument may share that memory. A tensor that the kernel cannot access directly
(for example not contiguous) is copied before the launch and copied back after it.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch

from monotile.errors import InputError
from monotile.runtime.panels import Copies

_WORK = 10_000  # search limit of the proof that two interleaved views do not overlap

Named = tuple[str, torch.Tensor]


class UpdatedBuffers(msgspec.Struct, frozen=True):
    """Updated buffers. own: the caller's tensors. seen: those that the kernel accesses."""

    own: Mapping[str, torch.Tensor]
    seen: Mapping[str, torch.Tensor]

    def copied(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The pairs of the two that differ, so that a call copies between them."""
        pairs = [(x, self.seen[name]) for name, x in self.own.items()]
        return [(x, y) for x, y in pairs if x.data_ptr() != y.data_ptr()]


class Weights(msgspec.Struct, frozen=True):
    """One set of weights. Its pointers are valid as long as it is referenced."""

    tensors: dict[str, torch.Tensor]
    pointers: tuple[int, ...]
    states: UpdatedBuffers
    copies: Copies


def copy_in(held: UpdatedBuffers) -> None:
    """Copies updated buffers to the kernel's tensors before a call."""
    for own, seen in held.copied():
        seen.copy_(own)


def copy_back(held: UpdatedBuffers, given: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies updated buffers and inputs back to the caller's tensors after a call. given: updated inputs: the caller's tensors and those
    that the kernel accessed."""
    for own, seen in (*held.copied(), *given):
        if own.data_ptr() != seen.data_ptr():
            own.copy_(seen)
        if not own.is_inference():
            torch.autograd.graph.increment_version(own)


def refuse_shared(changed: Sequence[Named], others: Sequence[Named]) -> None:
    """Raises InputError if one of `changed` shares memory with another, or with one of `others`."""
    if not changed:
        return
    named = [*changed, *others]
    spans = sorted((*_span(x), k) for k, (_, x) in enumerate(named))
    before: list[tuple[int, int]] = []  # where others end that may reach further
    for low, high, k in spans:
        if low == high:
            continue
        before = [(end, i) for end, i in before if end > low]
        for _, i in before:
            first, second = min(i, k), max(i, k)
            if first < len(changed) and _meet(named[first][1], named[second][1]):
                raise InputError(
                    f"{named[second][0]} shares memory with {named[first][0]}, which the model updates in place: pass a clone"
                )
        before.append((high, k))


def _meet(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether tensors with overlapping address ranges share elements."""
    if x.is_contiguous() and y.is_contiguous():
        return True
    try:
        return bool(np.shares_memory(_outline(x), _outline(y), max_work=_WORK))  # pyright: ignore[reportArgumentType]
    except np.exceptions.TooHardError:
        return True


def _span(x: torch.Tensor) -> tuple[int, int]:
    """Addresses of the first byte, and of the byte after the last."""
    first = x.data_ptr()
    if x.numel() == 0:
        return first, first
    if x.is_contiguous():
        return first, first + x.nbytes
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return first, first + (last + 1) * x.element_size()


class _Outline:
    """An array interface with addresses only: the memory may be on a GPU."""

    def __init__(self, x: torch.Tensor) -> None:
        size = x.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (x.data_ptr(), True),
            "shape": tuple(x.shape),
            "strides": tuple(s * size for s in x.stride()),
            "typestr": f"|V{size}",
        }


def _outline(x: torch.Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.void]]":
    return np.asarray(_Outline(x))
