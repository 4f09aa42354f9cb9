"""Dynamic dimensions of Dynamo's graphs: which ones there are, and for what range a kernel is compiled."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.export import Dim

from monotile.frontends.torch.sizes.ranges import UNBOUNDED

LEAST = 64  # that a range without an end is compiled for: then for the next power of two


class Place(NamedTuple):
    """Dimension `dim` of argument number `arg`."""

    arg: int
    dim: int


class Open(NamedTuple):
    """The dynamic dimensions of a graph. dims: symbols by argument and dimension. numbers: arguments that are sizes, each with the
    dimension that it equals. ranges: minimum and maximum of each symbol; None for no maximum. places: one place of each symbol."""

    dims: Mapping[int, Mapping[int, str]]
    numbers: Mapping[int, Place]
    ranges: Mapping[str, tuple[int, int | None]]
    places: Mapping[str, Place]

    def most(self, args: Sequence[Any]) -> dict[str, int]:
        """The upper bound of each symbol in a kernel for these arguments: Dynamo's, or the next power of two."""
        out: dict[str, int] = {}
        for name, (_, high) in self.ranges.items():
            arg, dim = self.places[name]
            size = int(args[arg].shape[dim])
            out[name] = high if high is not None else max(LEAST, 1 << (size - 1).bit_length())
        return out

    def type_of(self, k: int, x: object, most: Mapping[str, int]) -> object:
        """The properties of argument `k` that a kernel depends on."""
        if not isinstance(x, torch.Tensor):
            return type(x), x
        own = self.dims.get(k, {})
        shape = tuple((own[d], most[own[d]]) if d in own else n for d, n in enumerate(x.shape))
        return shape, x.dtype, x.device

    def dynamic_shapes(self, free: Sequence[int], most: Mapping[str, int]) -> Any:
        """The `dynamic_shapes` argument of `torch.export`, for a module with the arguments `free`."""
        named = {
            n: Dim(f"d{k}", min=low, max=most[n])
            for k, (n, (low, _)) in enumerate(self.ranges.items())
        }
        own = ({d: named[n] for d, n in self.dims.get(k, {}).items()} or None for k in free)
        return {"free": tuple(own)}


NOTHING = Open({}, {}, {}, {})


def dynamic_dims(module: fx.GraphModule) -> Open:
    """The dynamic dimensions of a graph of Dynamo. A dimension that is an expression of a symbol, such as twice one, is not included: its
    value is compiled in."""
    dims: dict[int, dict[int, str]] = {}
    ranges: dict[str, tuple[int, int | None]] = {}
    places: dict[str, Place] = {}
    given = [n.meta.get("example_value") for n in module.graph.find_nodes(op="placeholder")]
    for k, value in enumerate(given):
        if not isinstance(value, torch.Tensor):
            continue
        for d, n in enumerate(value.shape):
            if isinstance(n, torch.SymInt) and n.node.expr.is_Symbol:
                name = str(n.node.expr)
                dims.setdefault(k, {})[d] = name
                places.setdefault(name, Place(k, d))
                ranges.setdefault(name, _range(n))
    numbers = {
        k: places[str(value.node.expr)]
        for k, value in enumerate(given)
        if isinstance(value, torch.SymInt) and str(value.node.expr) in places
    }
    return Open(dims, numbers, ranges, places)


def _range(n: torch.SymInt) -> tuple[int, int | None]:
    found = n.node.shape_env.var_to_range[n.node.expr]
    high = int(found.upper) if found.upper.is_Integer else UNBOUNDED
    return max(int(found.lower), 1), high if high < UNBOUNDED else None
