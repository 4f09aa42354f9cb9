"""Which float32 products may use TF32, by PyTorch's settings."""

from typing import Any, NamedTuple

import torch
from torch import fx

from monotile.frontends.torch.lower.convolution import LOWERINGS


class Tf32(NamedTuple):
    """Whether float32 convolutions, and all other float32 products, may round their factors to TF32 (10 bits of mantissa)."""

    convolutions: bool
    products: bool

    def allows(self, node: fx.Node) -> bool:
        """Whether the operator may use TF32."""
        packet = str(node.target).rpartition(".")[0]
        return self.convolutions if packet in LOWERINGS else self.products


STRICT = Tf32(convolutions=False, products=False)


def tf32_of(wanted: bool | None) -> Tf32:
    """The choice of `Options.tf32`; None: PyTorch's current settings."""
    if wanted is not None:
        return Tf32(wanted, wanted)
    backends: Any = torch.backends
    of = (backends.cudnn.conv, backends.cuda.matmul)
    return Tf32(*(x.fp32_precision == "tf32" for x in of))
