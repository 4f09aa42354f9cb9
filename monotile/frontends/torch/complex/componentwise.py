"""Operators that apply to both components of complex tensors separately: data movement, sums."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, Type, Unsupported
from monotile.frontends.torch.complex.pair import Pair
from monotile.ir.expr import Tensor, const

Lowering = Callable[..., Any]

# Names, and which of their arguments are complex or stand for complex numbers: all others are the same for both parts.
_VALUES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        "view reshape _unsafe_view flatten unflatten slice select narrow unsqueeze squeeze permute transpose t mT numpy_T"
        " expand expand_as broadcast_to repeat tile repeat_interleave flip roll index index_select gather take cat concat"
        " stack clone alias detach contiguous lift_fresh positive split split_with_sizes chunk unbind diagonal unfold"
        " unfold_backward tril triu diag_embed as_strided _pad_circular reflection_pad1d reflection_pad2d"
        " reflection_pad3d replication_pad1d replication_pad2d replication_pad3d sum mean cumsum neg trace".split(),
        (0,),
    ),
    **dict.fromkeys("zeros zeros_like new_zeros empty empty_like new_empty".split(), (0,)),
    **dict.fromkeys("ones ones_like new_ones".split(), ()),
    **dict.fromkeys("full_like copy fill slice_scatter select_scatter diagonal_scatter".split(), (0, 1)),
    "full": (1,),
    "new_full": (0, 2),
    "scalar_tensor": (0,),
    "where": (1, 2),
    "masked_fill": (0, 2),
    "constant_pad_nd": (0, 2),
    "pad": (0, 3),
    **dict.fromkeys("index_put _unsafe_index_put".split(), (0, 2)),
    **dict.fromkeys("index_add index_copy index_fill scatter scatter_add".split(), (0, 3)),
}  # fmt: skip
_NAMED = frozenset(("value", "source", "src", "fill_value"))
_OF_ONE = frozenset("ones ones_like new_ones".split())  # made of real numbers alone


def is_componentwise(name: str) -> bool:
    return name in _VALUES


def lower_componentwise(
    b: Builder, name: str, lowering: Lowering, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The results of `lowering` applied to each component: a Pair, or a tuple of several."""
    if "reduce" in kwargs:
        raise Unsupported(f"reduce={kwargs['reduce']!r} of complex numbers")
    node, results = b.node, b.results
    found: list[Any] = []
    for k, part in enumerate(Pair._fields):
        b.begin(f"{node}_{part}", b.origin, results)
        if k and name in _OF_ONE:
            found.append(_nothing(b, results[0]))
            continue
        given = [_part(b, x, k, j in _VALUES[name]) for j, x in enumerate(args)]
        named = {n: _part(b, x, k, n in _NAMED) for n, x in kwargs.items()}
        found.append(lowering(b, *given, **named))
    real, imag = found
    if isinstance(real, Tensor):
        return Pair(real, imag)
    return tuple(Pair(*parts) for parts in zip(real, imag, strict=True))


def _part(b: Builder, x: Any, k: int, is_value: bool) -> Any:
    """Component `k` of an argument. is_value: the argument is a value, and a real number has no imaginary part."""
    match x:
        case Pair():
            return x[k]
        case Tensor():
            return _nothing(b, Type(x.shape, x.dtype)) if is_value and k else x
        case list() | tuple():
            return [_part(b, y, k, is_value and isinstance(y, Tensor)) for y in x]
        case complex() if is_value:
            return x.imag if k else x.real
        case complex():
            raise Unsupported("times a complex number")
        case bool() | int() | float() if is_value:
            return 0 if k else x
        case _:
            return x


def _nothing(b: Builder, of: Type) -> Tensor:
    return b.emit(of.shape, of.dtype, lambda *_: const(0, of.dtype), part="zero")
