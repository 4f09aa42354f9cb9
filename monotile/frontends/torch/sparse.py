"""`monotile.sparse`: the declaration that most blocks of a tensor are zero."""

from collections.abc import Sequence
from typing import Any

import torch

from monotile.errors import InputError

_LIBRARY = torch.library.Library("monotile", "FRAGMENT")
_LIBRARY.define("sparse(Tensor x, int[] grain) -> Tensor")


def _copy(x: torch.Tensor, _grain: Sequence[int]) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


_LIBRARY.impl("sparse", _copy, "CompositeExplicitAutograd")
_OP: Any = torch.ops.monotile.sparse.default


def sparse(x: torch.Tensor, grain: Sequence[int] = (1, 1)) -> torch.Tensor:
    """`x`, declared to have mostly zero blocks, which may differ from call to call and are skipped.

    x: a mask, or what has been multiplied by one: of bools, integers or floats. grain: the extents of a block along the last dimensions, which
    divide these; a block is left out if all of it is zero.
    Where a compiled model multiplies a matrix by `x`, or by what is zero where `x` is, its kernel finds the other blocks and reads and computes
    what these need: if 16 rows or more share their zeros (grain `(32, 1)`), along lists of what is left of the other dimension. Else, and in eager
    PyTorch, it says nothing. The result is that of `x` itself as long as what is left out would be multiplied by finite numbers.
    Raises InputError for a grain that does not fit.
    """
    shape, blocks = tuple(x.shape), tuple(grain)
    fits = 0 < len(blocks) <= len(shape) and all(g > 0 for g in blocks)
    if not fits or any(
        n % g for n, g in zip(shape[len(shape) - len(blocks) :], blocks, strict=True)
    ):
        raise InputError(f"a tensor of shape {shape} has no whole blocks of {blocks}")
    return _OP(x, list(blocks)) if torch.compiler.is_compiling() else x
