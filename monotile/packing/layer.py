"""Linear layers and embeddings with packed weights."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from monotile.packing.format import Format


class PackedMatrix(nn.Module):
    """A matrix [rows, columns] that PyTorch operators decode whenever it is read.

    The tensors of the format are buffers, in the state dict under the names that the format gives them. Only those that it has in the
    matrix's dtype are converted by `half()` and `to(dtype)`; codes, and scales that are float32 by definition, keep their dtype.
    dtype: of the decoded matrix.
    """

    def __init__(
        self,
        format: Format,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.format, self.dtype, self.shape = format, dtype, shape
        self._names = tuple(sorted(tensors))
        self._tables = frozenset(format.tables(torch.device("meta")))
        for name in self._names:
            self.register_buffer(name, tensors[name])

    @property
    def packed(self) -> dict[str, Tensor]:
        """The tensors of the format by name."""
        return {name: self.get_buffer(name) for name in self._names}

    @property
    def weight(self) -> Tensor:
        """The decoded matrix. It is a new tensor each time: changing it has no effect."""
        return self.decoded()

    def decoded(self) -> Tensor:
        """The decoded matrix, in the format's order of columns."""
        return self.format.decode(self.packed, self.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """[*ids.shape, columns]: the decoded rows `ids`, for formats that encode rows independently."""
        tensors = {n: t if n in self._tables else t[ids.flatten()] for n, t in self.packed.items()}
        return self.format.decode(tensors, self.dtype).unflatten(0, ids.shape)

    def extra_repr(self) -> str:
        rows, columns = self.shape
        return f"{rows}, {columns}, {self.stored()}"

    def stored(self) -> str:
        """The format and its group size, as text."""
        group = "" if self.format.group is None else f", group={self.format.group}"
        return f"format={self.format.name}{group}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """As for `half`, `to`, `cuda` and similar: the tensors that keep their dtype are only moved."""
        kept = {n: t for n, t in self._buffers.items() if n not in self.format.in_dtype}
        self._buffers.update(dict.fromkeys(kept))
        super()._apply(fn, recurse)
        for name, tensor in kept.items():
            if tensor is not None:
                moved = fn(tensor)
                same = moved.dtype == tensor.dtype
                self._buffers[name] = moved if same else tensor.to(moved.device)
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return self


class PackedLinear(PackedMatrix):
    """y = x @ weight.T + bias, the weight [out_features, in_features] decoded in each call.

    dtype:  of the decoded weight, and so of the input and the result.
    order:  int64 [in_features], or None; column i of what the format decodes belongs to input order[i].
    """

    bias: nn.Parameter | None
    order: Tensor | None

    def __init__(
        self,
        format: Format,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype,
        bias: nn.Parameter | None = None,
        order: Tensor | None = None,
    ) -> None:
        """shape: out_features, in_features."""
        super().__init__(format, shape, tensors, dtype)
        self.out_features, self.in_features = shape
        self.register_buffer("order", order)
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> Tensor:
        """The decoded weight, [out_features, in_features]. It is a new tensor each time: changing it has no effect."""
        decoded = self.decoded()
        return decoded if self.order is None else decoded[:, self.order.argsort()]

    def forward(self, x: Tensor) -> Tensor:
        if self.order is not None:
            x = x.index_select(-1, self.order)
        return functional.linear(x, self.decoded(), self.bias)

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}, {self.stored()}"


class PackedEmbedding(nn.Module):
    """Rows of `table`, decoded when they are looked up. The table of a tied head is that layer, so that its codes exist once."""

    def __init__(self, table: PackedMatrix, padding_idx: int | None = None) -> None:
        super().__init__()
        self.table, self.padding_idx = table, padding_idx
        self.num_embeddings, self.embedding_dim = table.shape

    @property
    def weight(self) -> Tensor:
        """[num_embeddings, embedding_dim], decoded. It is a new tensor each time: changing it has no effect."""
        return self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.table.rows(ids)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.table.stored()}"
