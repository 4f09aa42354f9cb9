"""Views: a Compute whose body is one Load with a remapped index; later passes inline it."""

import sys
from collections.abc import Callable, Sequence

from monotile.frontends.builder import Builder, broadcast, load, wrap
from monotile.frontends.torch.lower.float8 import encoded
from monotile.frontends.torch.lower.reshape import reshape_index
from monotile.frontends.torch.lower.scalar import floordiv, lt, mod, select, sub
from monotile.frontends.torch.sizes.size import least, most
from monotile.ir.expr import Expr, Tensor, add, const, idx, mul


def identity(b: Builder, x: Tensor, *_: object, **__: object) -> Tensor:
    """The operand itself: every tensor is row-major and no two share memory."""
    return x


def convert(b: Builder, x: Tensor | float, *_: object, **__: object) -> Tensor:
    """A cast to the type that PyTorch gives the result. x: may be a number where PyTorch has a tensor, in a traced derivative."""
    if not isinstance(x, Tensor):
        return b.result(lambda *_: const(x, b.dtype))
    return x if x.dtype is b.dtype else b.result(lambda *i: encoded(load(x, i), b.dtype))


def view(b: Builder, x: Tensor, *_: object, **__: object) -> Tensor:
    """A reshape to the result's shape."""
    if x.shape == b.shape:
        return x
    if x.size == 0:
        return b.result(lambda *i: const(0, x.dtype))
    return b.result(lambda *i: load(x, reshape_index(x.shape, b.shape, i)))


def expand(b: Builder, x: Tensor, *_: object, **__: object) -> Tensor:
    if x.shape == b.shape:
        return x
    return b.result(lambda *i: load(x, broadcast(x.shape, i)))


def permuted(b: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    """Dimension k of the result is dimension dims[k] of `x`."""
    order = [wrap(d, len(x.shape)) for d in dims]
    if order == list(range(len(order))):
        return x
    return b.result(lambda *i: load(x, [i[order.index(k)] for k in range(len(order))]))


def permute(b: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    return permuted(b, x, dims)


def transpose(b: Builder, x: Tensor, dim0: int, dim1: int) -> Tensor:
    rank = len(x.shape)
    order = list(range(rank))
    if rank:
        p, q = wrap(dim0, rank), wrap(dim1, rank)
        order[p], order[q] = q, p
    return permuted(b, x, order)


def matrix_transpose(b: Builder, x: Tensor) -> Tensor:
    return transpose(b, x, -2, -1) if len(x.shape) >= 2 else x


def movedim(
    b: Builder, x: Tensor, source: int | Sequence[int], destination: int | Sequence[int]
) -> Tensor:
    """Each dimension of `source` goes to its place in `destination`; the others keep their order."""
    rank = len(x.shape)
    given, to = ([wrap(d, rank) for d in ([k] if isinstance(k, int) else k)] for k in (source, destination))  # fmt: skip
    rest = iter([d for d in range(rank) if d not in given])
    return permuted(b, x, [given[to.index(k)] if k in to else next(rest) for k in range(rank)])


def reversed_dims(b: Builder, x: Tensor) -> Tensor:
    return permuted(b, x, list(reversed(range(len(x.shape)))))


def along(i: Sequence[Expr], dim: int, f: Callable[[Expr], Expr]) -> list[Expr]:
    """The index `i` with `f` applied at `dim`."""
    out = list(i)
    out[dim] = f(out[dim])
    return out


def clamp_slice(start: int | None, end: int | None, extent: int) -> tuple[int, int]:
    """A slice's bounds clamped to 0 ... extent, as in Python and PyTorch."""
    first, last = _clamped(start, 0, extent), _clamped(end, extent, extent)
    return first, most(first, last)


def _clamped(x: int | None, default: int, extent: int) -> int:
    if x is None:
        return default
    return most(x + extent, 0) if x < 0 else least(x, extent)


def slice_(
    b: Builder,
    x: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    if x.shape == b.shape and step == 1:
        return x
    d = wrap(dim, len(x.shape))
    # Where it ends, the result's shape says; or where it begins, if it is the last part.
    to_end = step == 1 and (end is None or end == sys.maxsize)
    first = x.shape[d] - b.shape[d] if to_end else _clamped(start, 0, x.shape[d])
    return b.result(lambda *i: load(x, along(i, d, lambda k: add(mul(k, idx(step)), idx(first)))))


def select_(b: Builder, x: Tensor, dim: int, index: int) -> Tensor:
    d = wrap(dim, len(x.shape))
    k = index + x.shape[d] if index < 0 else index
    return b.result(lambda *i: load(x, [*i[:d], idx(k), *i[d:]]))


def narrow(b: Builder, x: Tensor, dim: int, start: int, length: int) -> Tensor:
    return slice_(b, x, dim, start, start + length if start >= 0 else start % x.shape[dim] + length)


def split(b: Builder, x: Tensor, split_size: object, dim: int = 0) -> tuple[Tensor, ...]:
    """split, split_with_sizes and chunk: the extents of the parts are those of the results."""
    d = wrap(dim, len(x.shape))
    parts: list[Tensor] = []
    first = 0
    for k, (shape, _) in enumerate(b.results):
        begin = first
        if len(b.results) == 1 and shape == x.shape:
            return (x,)
        parts.append(
            b.result(lambda *i, f=begin: load(x, along(i, d, lambda e: add(e, idx(f)))), index=k)
        )
        first += shape[d]
    return tuple(parts)


def meshgrid(b: Builder, tensors: Sequence[Tensor], indexing: str = "ij") -> tuple[Tensor, ...]:
    """Each vector along its own dimension; "xy" exchanges the first two dimensions."""
    order = list(range(len(tensors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = 1, 0
    return tuple(
        b.result(lambda *i, x=x, d=d: load(x, [i[d]] if x.shape else []), index=k)
        for k, (x, d) in enumerate(zip(tensors, order, strict=True))
    )


def unbind(b: Builder, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    d = wrap(dim, len(x.shape))
    return tuple(
        b.result(lambda *i, k=k: load(x, [*i[:d], idx(k), *i[d:]]), index=k)
        for k in range(len(b.results))
    )


def diagonal(b: Builder, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    rank = len(x.shape)
    p, q = wrap(dim1, rank), wrap(dim2, rank)
    down, right = max(-offset, 0), max(offset, 0)

    def body(*i: Expr) -> Expr:
        rest = iter(i[:-1])
        at = {p: add(i[-1], idx(down)), q: add(i[-1], idx(right))}
        return load(x, [at[k] if k in at else next(rest) for k in range(rank)])

    return b.result(body)


def unfold(b: Builder, x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` along a dimension, as a new last one."""
    if not x.shape:
        return b.result(lambda *i: load(x, ()))
    d = wrap(dimension, len(x.shape))
    return b.result(lambda *i: load(x, along(i[:-1], d, lambda k: add(mul(k, idx(step)), i[-1]))))


def flip(b: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    flipped = {wrap(d, len(x.shape)) for d in dims} if x.shape else set[int]()
    return b.result(
        lambda *i: load(
            x, [sub(idx(x.shape[k] - 1), e) if k in flipped else e for k, e in enumerate(i)]
        )
    )


def roll(b: Builder, x: Tensor, shifts: int | Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    amounts = [shifts] if isinstance(shifts, int) else list(shifts)
    if not dims:
        if x.size == 0:
            return x
        shift = amounts[0] % x.size

        def flat(*i: Expr) -> Expr:
            position: Expr = idx(0)
            for e, step in zip(i, x.strides, strict=True):
                position = add(position, mul(e, idx(step)))
            moved = mod(add(position, idx(x.size - shift)), idx(x.size))
            return load(x, reshape_index(x.shape, (x.size,), (moved,)))

        return b.result(flat)
    by = [0] * len(x.shape)
    for d, s in zip(dims, amounts, strict=True):
        by[wrap(d, len(x.shape))] += s

    def moved(k: int, e: Expr) -> Expr:
        n = most(x.shape[k], 1)
        shift = by[k] % n
        return e if shift == 0 else mod(add(e, idx(n - shift)), idx(n))

    return b.result(lambda *i: load(x, [moved(k, e) for k, e in enumerate(i)]))


def repeat(b: Builder, x: Tensor, repeats: Sequence[int]) -> Tensor:
    def body(*i: Expr) -> Expr:
        tail = i[len(i) - len(x.shape) :]
        extents = b.shape[len(i) - len(x.shape) :]
        return load(
            x,
            [
                e if n == m else mod(e, idx(n))
                for e, n, m in zip(tail, x.shape, extents, strict=True)
            ],
        )

    return b.result(body)


def repeat_interleave(
    b: Builder, x: Tensor, repeats: int, dim: int | None = None, **_: object
) -> Tensor:
    if dim is None:
        return b.result(
            lambda i: load(x, reshape_index(x.shape, (x.size,), (floordiv(i, idx(repeats)),)))
        )
    d = wrap(dim, len(x.shape))
    return b.result(lambda *i: load(x, along(i, d, lambda k: floordiv(k, idx(repeats)))))


def pixel_shuffle(b: Builder, x: Tensor, upscale_factor: int) -> Tensor:
    r = upscale_factor

    def body(*i: Expr) -> Expr:
        *lead, c, y, z = i
        channel = add(mul(c, idx(r * r)), add(mul(mod(y, idx(r)), idx(r)), mod(z, idx(r))))
        return load(x, [*lead, channel, floordiv(y, idx(r)), floordiv(z, idx(r))])

    return b.result(body)


def pixel_unshuffle(b: Builder, x: Tensor, downscale_factor: int) -> Tensor:
    r = downscale_factor

    def body(*i: Expr) -> Expr:
        *lead, c, y, z = i
        down, right = mod(floordiv(c, idx(r)), idx(r)), mod(c, idx(r))
        return load(
            x,
            [
                *lead,
                floordiv(c, idx(r * r)),
                add(mul(y, idx(r)), down),
                add(mul(z, idx(r)), right),
            ],
        )

    return b.result(body)


def joined(i: Sequence[Expr], dim: int, parts: Sequence[tuple[int, Tensor]]) -> Expr:
    """The element at `i` of the concatenation of `parts` along `dim`, by a balanced tree of Selects.

    parts: (start position, tensor), ascending.
    """
    if len(parts) == 1:
        first, t = parts[0]
        return load(t, along(i, dim, lambda k: sub(k, idx(first))))
    half = len(parts) // 2
    return select(
        lt(i[dim], idx(parts[half][0])),
        joined(i, dim, parts[:half]),
        joined(i, dim, parts[half:]),
    )


def cat(b: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    # An empty tensor of shape (0,) joins anything: PyTorch keeps that from its early days.
    held = [t for t in tensors if t.shape != (0,)]
    if not held:
        return tensors[0]
    d = wrap(dim, len(b.shape))
    parts: list[tuple[int, Tensor]] = []
    first = 0
    for t in held:
        if int(t.shape[d]):  # a size that may be 0 is not one that is
            parts.append((first, t))
        first += t.shape[d]
    if not parts:
        return b.result(lambda *i: const(0, b.dtype))
    if len(parts) == 1 and parts[0][1].dtype is b.dtype:
        return parts[0][1]
    dtypes = {t.dtype for _, t in parts}
    if len(dtypes) > 1:  # the sides of a Select have one type
        parts = [
            (k, b.emit(t.shape, b.dtype, lambda *i, t=t: load(t, i), part="cast")) for k, t in parts
        ]
    return b.result(lambda *i: joined(i, d, parts))


def stack(b: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    d = wrap(dim, len(b.shape))
    dtypes = {t.dtype for t in tensors}
    held = list(tensors)
    if len(dtypes) > 1:
        held = [b.emit(t.shape, b.dtype, lambda *i, t=t: load(t, i), part="cast") for t in tensors]

    def pick(i: Sequence[Expr], low: int, high: int) -> Expr:
        if high - low == 1:
            return load(held[low], [*i[:d], *i[d + 1 :]])
        half = (low + high) // 2
        return select(lt(i[d], idx(half)), pick(i, low, half), pick(i, half, high))

    return b.result(lambda *i: pick(i, 0, len(held)))


LOWERINGS = {
    **dict.fromkeys(
        (
            "aten.alias",
            "aten.clone",
            "aten.contiguous",
            "aten.detach",
            "aten.detach_",
            "aten.lift_fresh",
            "aten.lift_fresh_copy",
            "aten.positive",
        ),
        identity,
    ),
    **dict.fromkeys(
        (
            "aten._to_copy",
            "aten.to",
            "aten.type_as",
            "aten._conj",
            "prims.convert_element_type",
        ),
        convert,
    ),
    **dict.fromkeys(
        (
            "aten.view.default",
            "aten._unsafe_view",
            "aten.reshape",
            "aten.reshape_as",
            "aten.view_as",
            "aten.flatten.using_ints",
            "aten.unflatten.int",
            "aten.unsqueeze",
            "aten.squeeze",
        ),
        view,
    ),
    "aten.expand": expand,
    "aten.expand_as": expand,
    "aten.broadcast_to": expand,
    "aten.permute": permute,
    "aten.transpose.int": transpose,
    **{f"aten.{n}.{k}": movedim for n in ("movedim", "moveaxis") for k in ("int", "intlist")},
    "aten.swapaxes.default": transpose,
    "aten.swapdims.default": transpose,
    "aten.t": matrix_transpose,
    "aten.mT": matrix_transpose,
    "aten.numpy_T": reversed_dims,
    "aten.slice.Tensor": slice_,
    "aten.select.int": select_,
    "aten.narrow.default": narrow,
    "aten.meshgrid": meshgrid,
    "aten.split": split,
    "aten.split_with_sizes": split,
    "aten.chunk": split,
    "aten.unbind.int": unbind,
    "aten.diagonal": diagonal,
    "aten.unfold": unfold,
    "aten.flip": flip,
    "aten.roll": roll,
    "aten.repeat": repeat,
    "aten.tile": repeat,
    "aten.repeat_interleave.self_int": repeat_interleave,
    "aten.pixel_shuffle": pixel_shuffle,
    "aten.pixel_unshuffle": pixel_unshuffle,
    "aten.cat": cat,
    "aten.concat.default": cat,
    "aten.stack": stack,
}
