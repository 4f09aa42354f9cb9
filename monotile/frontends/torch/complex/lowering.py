"""Lowers operators that read or produce complex tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from monotile.errors import InternalError
from monotile.frontends.builder import Builder, Type, Unsupported
from monotile.frontends.torch.complex.arithmetic import ARITHMETIC
from monotile.frontends.torch.complex.componentwise import is_componentwise, lower_componentwise
from monotile.frontends.torch.complex.fourier import FOURIER
from monotile.frontends.torch.complex.pair import PARTS, Pair
from monotile.frontends.torch.complex.products import PRODUCTS
from monotile.frontends.torch.origin import origin
from monotile.frontends.torch.registry import find
from monotile.frontends.torch.sizes.size import Shapes
from monotile.frontends.torch.types import dtype_of
from monotile.ir.expr import Tensor, const

_WHOLE = {**ARITHMETIC, **PRODUCTS, **FOURIER}
_AS_REAL = ("aten.view_as_real.default", "aten.view_as_real_copy.default")


def is_complex(node: fx.Node) -> bool:
    """Whether `node` reads or returns a complex tensor."""
    return any(v.dtype in PARTS for n in (node, *node.all_input_nodes) for v in _tensors(n))


def has_lowering(node: fx.Node) -> bool:
    """Whether `lower_complex` knows the operator."""
    name = _name(node)
    return name in _WHOLE or (is_componentwise(name) and find(node.target) is not None)


def lower_complex(
    b: Builder, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Shapes
) -> Any:
    """Lowers `node`, which has complex operands or results: a Pair, a Tensor, or a tuple of these.

    Raises Unsupported if it has no complex lowering.
    """
    values = _tensors(node)
    if not values or not has_lowering(node):
        raise Unsupported("of complex numbers")
    types = tuple(
        Type(tuple(map(shapes.size, v.shape)), PARTS.get(v.dtype) or dtype_of(v.dtype)) for v in values
    )  # fmt: skip
    b.begin(node.name, origin(node.stack_trace), types)
    name = _name(node)
    whole, lowering = _WHOLE.get(name), find(node.target)
    if len(types) == 1 and 0 in types[0].shape:  # no elements, nothing to compute
        parts = [b.result(lambda *_: const(0, b.dtype)) for _ in Pair._fields]
        found = Pair(*parts) if values[0].dtype in PARTS else parts[0]
    elif whole is not None:
        found = whole(b, *args, **kwargs)
    elif lowering is not None and all(v.dtype in PARTS for v in values):
        found = lower_componentwise(b, name, lowering, args, kwargs)
    else:
        raise Unsupported("of complex numbers")
    several = found if isinstance(found, tuple) and not isinstance(found, Pair) else (found,)
    for x, v, t in zip(several, values, types, strict=True):
        if isinstance(x, Pair) is not (v.dtype in PARTS):
            raise Unsupported("from complex numbers to real ones")
        if any((y.shape, y.dtype) != t for y in (x if isinstance(x, Pair) else (x,))):
            raise InternalError(f"{node.target} ({node.name}): lowered to {x}, PyTorch has {t}")
    return found


def part_of(node: fx.Node) -> tuple[fx.Node, int] | None:
    """The complex tensor of which `node` selects a component (`z.real` after export), and which component; the other one is then not needed."""
    if str(node.target) not in ("aten.select.int", "aten.select_copy.int"):
        return None
    whole, dim, k = node.args
    if not isinstance(whole, fx.Node) or str(whole.target) not in _AS_REAL:
        return None
    last = whole.meta["val"].ndim - 1
    if dim not in (-1, last) or not isinstance(k, int) or k not in (0, 1):
        return None
    return whole.all_input_nodes[0], k


def stand_in(node: fx.Node, shapes: Shapes) -> Pair | None:
    """Placeholders of the right types for the complex result of `node`; None if its result is not complex."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype not in PARTS:
        return None
    shape = tuple(map(shapes.size, value.shape))
    return Pair(*(Tensor(f"{node.name}_{part}", shape, PARTS[value.dtype]) for part in Pair._fields))  # fmt: skip


def _name(node: fx.Node) -> str:
    return str(node.target).split(".")[1].removesuffix("_copy") if "." in str(node.target) else ""


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    several = value if isinstance(value, tuple | list) else (value,)
    return [v for v in several if isinstance(v, torch.Tensor)]
