"""Which products of float32 may be made of TF32, as PyTorch's settings say."""

from typing import Any, NamedTuple

import torch
from torch import fx

from monotile.frontends.torch.lower.convolution import LOWERINGS


class Tf32(NamedTuple):
    """Whether convolutions, and all other products, of float32 may take their factors with the precision of TF32 (10 bits of mantissa)."""

    convolutions: bool
    products: bool

    def allows(self, node: fx.Node) -> bool:
        """Whether the operator may."""
        packet = str(node.target).rpartition(".")[0]
        return self.convolutions if packet in LOWERINGS else self.products


STRICT = Tf32(convolutions=False, products=False)


def tf32_of(wanted: bool | None) -> Tf32:
    """What `Options.tf32` asks for; None: what PyTorch would do now."""
    if wanted is not None:
        return Tf32(wanted, wanted)
    backends: Any = torch.backends
    of = (backends.cudnn.conv, backends.cuda.matmul)
    return Tf32(*(x.fp32_precision == "tf32" for x in of))
