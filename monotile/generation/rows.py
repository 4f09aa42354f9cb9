"""Normalises prompts to one form: padded on the left to one length."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from monotile.errors import InputError

Ids = Tensor | Sequence[Tensor]


@dataclass(frozen=True)
class Rows:
    """ids: [sequences, n] int64. padding: the number of leading positions of each sequence that are not its tokens; less than n."""

    ids: Tensor
    padding: tuple[int, ...]

    def sequences(self) -> list[Tensor]:
        """Each without its padding."""
        return [row[k:] for row, k in zip(self.ids, self.padding, strict=True)]


def arranged(ids: Ids, mask: Tensor | None, batch: int, vocabulary: int, pad: int = 0) -> Rows:
    """`ids`: [sequences, n] int64, with a `mask` of that shape whose zeros are the padding on the left of each, if there is any; or
    sequences of different lengths, [n] int64 each. batch: sequences at most. Raises InputError for anything else."""
    if isinstance(ids, Tensor):
        _refuse_shape(ids, batch)
        padding = (0,) * len(ids) if mask is None else _padding(mask, ids)
        rows = Rows(ids, padding)
    else:
        if not isinstance(ids, list | tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"ids are a {type(ids).__name__}: give tensors of int64")
        if mask is not None:
            raise InputError("a mask is for ids that are one tensor: a list needs none")
        rows = padded(ids, batch, pad)
    if not rows.ids.numel() or max(rows.padding) >= rows.ids.shape[1]:
        raise InputError("a prompt has a token at least")
    low, high = int(rows.ids.min()), int(rows.ids.max())
    if not 0 <= low <= high < vocabulary:
        raise InputError(f"ids from {low} to {high}: the vocabulary has {vocabulary}")
    return rows


def padded(sequences: Sequence[Tensor], batch: int, pad: int) -> Rows:
    """Sequences of different lengths, filled up with `pad`."""
    for k, x in enumerate(sequences):
        known = isinstance(x, Tensor)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not known or x.dim() != 1 or x.dtype is not torch.int64:
            kind = f"{x.dtype} of shape {tuple(x.shape)}" if known else f"a {type(x).__name__}"
            raise InputError(f"sequence {k} is {kind}: give a tensor, int64 of shape [n]")
    longest = max((len(x) for x in sequences), default=0)
    out = torch.full((len(sequences), longest), pad, dtype=torch.int64)
    if len(out):
        out = out.to(sequences[0].device)
    _refuse_shape(out, batch)
    for row, x in zip(out, sequences, strict=True):
        row[longest - len(x) :] = x
    return Rows(out, tuple(longest - len(x) for x in sequences))


def _refuse_shape(ids: Tensor, batch: int) -> None:
    if ids.dim() != 2 or not 1 <= ids.shape[0] <= batch or ids.dtype is not torch.int64:
        wanted = "one sequence, int64 of shape [1, n]" if batch == 1 else f"1 to {batch} sequences, int64 of shape [sequences, n], or a list of them"  # fmt: skip
        raise InputError(f"ids are {ids.dtype} of shape {tuple(ids.shape)}: give {wanted}")


def _padding(mask: Tensor, ids: Tensor) -> tuple[int, ...]:
    if mask.shape != ids.shape:
        raise InputError(
            f"a mask of shape {tuple(mask.shape)} for ids of shape {tuple(ids.shape)}: they have to be equal"
        )
    there = mask.to(torch.int64)
    if not bool(((there == 0) | (there == 1)).all()) or bool((there.diff(dim=1) < 0).any()):
        raise InputError(
            "the mask is no left padding: each row has to be zeros, then ones (padding_side='left')"
        )
    return tuple((mask.shape[1] - there.sum(1)).tolist())
