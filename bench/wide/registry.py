"""What a network of the wide table is, and how its model and arguments are made."""

import copy
import importlib.util
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import nn

from bench.zoo.weights import calibrate, spread
from monotile.runtime.reference import Call, call_of, map_tensors

Parts = tuple[Any, ...]  # the model and its positional arguments
Make = Callable[[int], Parts]
NETWORKS: dict[str, "Network"] = {}
DTYPES = ("float16", "float32")  # of the table
MORE = ("bfloat16",)  # that are timed where somebody asks for them


class Network(msgspec.Struct, frozen=True):
    """make: of a batch, the model and its arguments in float32; with batch normalisation, the first dimension of each argument is
    the batch. images: mostly convolutions of images, for which rivals are timed in channels-last order too. library: its origin.
    dtypes: those in which PyTorch runs it on a GPU.
    """

    title: str
    domain: str
    make: Make
    images: bool = False
    library: str = "torch"
    dtypes: tuple[str, ...] = DTYPES

    @property
    def absent(self) -> bool:
        """Whether the library is not installed."""
        return importlib.util.find_spec(self.library) is None

    def built(self, dtype: torch.dtype, batch: int) -> tuple[nn.Module, Call]:
        """The model, in eval mode and without gradients, and its arguments, from seed 0. Vectors among the parameters are spread
        as `bench.zoo.weights` says; batch normalisation has the statistics of two elements of the batch."""
        torch.manual_seed(0)
        model, *args = self.make(batch)
        spread(model.eval().requires_grad_(False))
        few = [x[:2] for x in args]
        called = copy.deepcopy(model)  # which may keep something of a call, in its dtype
        calibrate(called, lambda: called(*few))
        model.load_state_dict(called.state_dict())
        return model.to(dtype), map_tensors(
            call_of(args), lambda x: x.to(dtype) if x.is_floating_point() else x
        )


def network(
    domain: str, title: str, *, images: bool = False, library: str = "torch"
) -> Callable[[Make], Make]:
    """Puts the function in NETWORKS, by its name."""

    def put(make: Make) -> Make:
        NETWORKS[make.__name__] = Network(title, domain, make, images, library)
        return make

    return put
