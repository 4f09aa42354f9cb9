"""Packed copies of weights, in the order in which a kernel reads them (`plan.places.Panels`)."""

import math
from collections.abc import Mapping, Sequence, Set

import torch

from monotile.plan.places import Panels

LINE = 64  # bytes: a copy begins at a cache line


class Copies:
    """tensors: a packed copy for each part of each weight that has one, in the order of the launch's pointers; all in one allocation."""

    def __init__(self, panels: Sequence[Panels], held: Mapping[str, torch.Tensor]) -> None:
        """held: the weights' parts in their original form."""
        self._made = [(p, part) for p in panels for part in p.parts]
        sizes = [p.elements * held[part].element_size() for p, part in self._made]
        room = [-(-n // LINE) * LINE for n in sizes]
        self.memory = torch.empty(sum(room), dtype=torch.uint8)
        pieces = self.memory.split(room) if room else ()
        self.tensors = [
            piece[:size].view(held[part].dtype)
            for piece, size, (_, part) in zip(pieces, sizes, self._made, strict=True)
        ]
        self.refresh(held.keys(), held)

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def refresh(self, changed: Set[str], held: Mapping[str, torch.Tensor]) -> None:
        """Updates the copies of the parts `changed`."""
        for (p, part), x in zip(self._made, self.tensors, strict=True):
            if part in changed:
                x.copy_(packed(held[part], p).flatten())


def packed(x: torch.Tensor, p: Panels) -> torch.Tensor:
    """The part `x` of a weight in the order of `p`: matrices, panels, pieces along k, column groups, words, columns, and the values in a
    word."""
    own = (*p.batches, *p.columns, *p.depth)
    back = [k for k, (_, stride) in enumerate(own) if stride < 0]
    first = (
        x.storage_offset() + p.first + sum((n - 1) * stride for n, stride in (own[k] for k in back))
    )
    matrices, columns, depth = (math.prod(n for n, _ in d) for d in (p.batches, p.columns, p.depth))
    _, whole_columns, whole_depth = p.shape
    whole = x.as_strided([n for n, _ in own], [abs(stride) for _, stride in own], first).flip(back)
    whole = whole.reshape(matrices, columns, depth)
    whole = torch.nn.functional.pad(whole, (0, whole_depth - depth, 0, whole_columns - columns))
    groups, pieces = p.block // p.group, whole_depth // (p.run * p.word)
    split = whole.view(matrices, -1, groups, p.group, pieces, p.run, p.word)
    return split.permute(0, 1, 4, 2, 5, 3, 6)
