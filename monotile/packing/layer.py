"""A linear layer with a packed weight."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from monotile.packing.format import Format


class PackedLinear(nn.Module):
    """y = x @ weight.T + bias, the weight decoded in each call by operators of PyTorch.

    The tensors of the format are buffers, in the state dict by the names that the format gives them. Only those that it has in
    the layer's dtype follow `half()` and `to(dtype)`; codes, and scales that are float32 by definition, keep their dtype.

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
        super().__init__()
        self.format, self.dtype = format, dtype
        self.out_features, self.in_features = shape
        self._names = tuple(sorted(tensors))
        for name in self._names:
            self.register_buffer(name, tensors[name])
        self.register_buffer("order", order)
        self.register_parameter("bias", bias)

    @property
    def packed(self) -> dict[str, Tensor]:
        """The tensors of the format by name."""
        return {name: self.get_buffer(name) for name in self._names}

    @property
    def weight(self) -> Tensor:
        """The decoded weight, [out_features, in_features]. A new tensor each time: changing it changes nothing."""
        decoded = self.format.decode(self.packed, self.dtype)
        return decoded if self.order is None else decoded[:, self.order.argsort()]

    def forward(self, x: Tensor) -> Tensor:
        if self.order is not None:
            x = x.index_select(-1, self.order)
        return functional.linear(x, self.format.decode(self.packed, self.dtype), self.bias)

    def extra_repr(self) -> str:
        group = "" if self.format.group is None else f", group={self.format.group}"
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}, format={self.format.name}{group}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """As `half`, `to`, `cuda` and their like do: the tensors that keep their dtype only move."""
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
