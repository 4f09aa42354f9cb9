"""Other arrangements of the same elements, and joining them."""

import math

import torch

from tests.fuzz.builder import LIMIT, Builder
from tests.fuzz.runs import Rejected


def has_dims(x: torch.Tensor) -> bool:
    return x.dim() > 0


def factorised(b: Builder, n: int) -> tuple[int, ...]:
    """A shape of `n` elements."""
    shape: list[int] = []
    while n > 1 and len(shape) < 4:
        divisors = [d for d in range(2, n + 1) if n % d == 0]
        shape.append(b.r.choice(divisors))
        n //= shape[-1]
    shape = [*shape, n] if n != 1 else shape
    for _ in range(b.r.choice((0, 0, 1))):
        shape.insert(b.r.randint(0, len(shape)), 1)
    b.r.shuffle(shape)
    return tuple(shape)


def reshape(b: Builder) -> None:
    x = b.pick()
    n = math.prod(b.shape(x))
    if n == 0:
        raise Rejected("empty")
    shape = list(factorised(b, n))
    if shape and b.chance(0.3):
        shape[b.r.randrange(len(shape))] = -1
    b.emit(f"{x}.reshape({tuple(shape)})")


def permute(b: Builder) -> None:
    x = b.pick(lambda t: t.dim() > 1)
    order = list(range(len(b.shape(x))))
    b.r.shuffle(order)
    how = b.r.randrange(3)
    if how == 0:
        b.emit(f"{x}.transpose({order[0]}, {order[1]})")
    else:
        b.emit(
            f"{x}.permute({tuple(order)})" + (".contiguous()" if how == 1 and b.chance(0.5) else "")
        )


def flatten(b: Builder) -> None:
    x = b.pick(lambda t: t.dim() > 1)
    start = b.r.randrange(len(b.shape(x)) - 1)
    b.emit(f"{x}.flatten({start}, {b.r.choice((-1, start + 1))})")


def ones(b: Builder) -> None:
    x = b.pick(lambda t: t.dim() < 5)
    at = b.r.randint(0, len(b.shape(x)))
    b.emit(b.r.choice((f"{x}.unsqueeze({at})", f"{x}.squeeze()", f"{x}[..., None]")))


def part(b: Builder, n: int) -> str:
    """One position of a subscript for a dimension of `n`."""
    start, stop = sorted((b.r.randint(0, n), b.r.randint(0, n)))
    return b.r.choice(
        (
            ":",
            ":",
            f"{start}:",
            f"{start}:{stop + 1}",
            f"::{b.r.randint(1, 3)}",
            f"{-min(2, n)}:",
            f"{start}::2",
        )
    )


def subscript(b: Builder, x: str) -> str:
    parts = [str(b.r.randrange(-n, n)) if n and b.chance(0.2) else part(b, n) for n in b.shape(x)]
    if b.chance(0.3):
        parts = parts[: b.r.randint(1, len(parts))]
    elif b.chance(0.2):
        parts = ["...", *parts[b.r.randint(0, len(parts) - 1) :]]
    return ", ".join(parts)


def slices(b: Builder) -> None:
    x = b.pick(has_dims)
    b.emit(f"{x}[{subscript(b, x)}]")


def narrow(b: Builder) -> None:
    x = b.pick(has_dims)
    d = b.dim(x)
    n = b.shape(x)[d]
    start = b.r.randint(0, max(n - 1, 0))
    b.emit(f"{x}.narrow({d}, {start}, {b.r.randint(min(1, n - start), n - start)})")


def expand(b: Builder) -> None:
    x = b.pick(lambda t: t.dim() < 5)
    shape = [b.r.choice((2, 3, 5)) if n == 1 and b.chance(0.6) else n for n in b.shape(x)]
    if b.chance(0.4):
        shape = [b.r.choice((1, 2, 3)), *shape]
    if math.prod(shape) > LIMIT:
        raise Rejected("too large")
    b.emit(f"{x}.expand({tuple(shape)})")


def moved(b: Builder) -> None:
    x = b.pick(has_dims)
    d, e = b.dim(x), b.dim(x)
    b.emit(
        b.r.choice(
            (
                f"torch.flip({x}, ({d},))",
                f"torch.roll({x}, {b.r.randint(-3, 5)}, {d})",
                f"torch.movedim({x}, {d}, {e})",
                f"{x}.unfold({d}, 2, {b.r.choice((1, 2, 3))})",
                f"{x}.unfold({d}, 3, 1)",
                f"{x}.select({d}, {b.r.randint(-1, 0)})",
                f"{x}.repeat_interleave(2, {d})",
                f"{x}.swapaxes({d}, {e})",
            )
        )
    )


def square(b: Builder) -> None:
    x = b.pick(lambda t: t.dim() > 1)
    k = b.r.randint(-1, 1)
    b.emit(
        b.r.choice(
            (
                f"torch.diagonal({x}, {k}, -2, -1)",
                f"{x}.tril({k})",
                f"{x}.triu({k})",
                f"{x}.diagonal(0, 0, 1)",
            )
        )
    )


def split(b: Builder) -> None:
    x = b.pick(has_dims)
    d = b.dim(x)
    n = b.shape(x)[d]
    if n < 2:
        raise Rejected("nothing to split")
    at = b.r.randint(1, n - 1)
    b.emit(
        f"torch.split({x}, [{at}, {n - at}], {d})"
        if b.chance(0.5)
        else f"torch.chunk({x}, 2, {d})",
        2,
    )


def unbind(b: Builder) -> None:
    x = b.pick(lambda t: t.dim() > 0 and 2 <= t.shape[0] <= 4)
    b.emit(f"torch.unbind({x})", b.shape(x)[0])


def join(b: Builder) -> None:
    """A stack or a concatenation of values that fit."""
    x = b.pick(has_dims)
    fitting = [n for n in b.pool if b.shape(n) == b.shape(x)]
    chosen = [x, *(b.r.choice(fitting) for _ in range(b.r.randint(1, 3)))]
    if b.chance(0.3):
        chosen.append(b.floats(b.shape(x), b.dtype))
    b.r.shuffle(chosen)
    b.emit(f"torch.{b.r.choice(('cat', 'cat', 'stack'))}(({', '.join(chosen)}), {b.dim(x)})")


def tile(b: Builder) -> None:
    x = b.pick(lambda t: t.dim() < 4)
    by = tuple(b.r.choice((1, 1, 2, 3)) for _ in range(max(1, len(b.shape(x)))))
    b.emit(b.r.choice((f"{x}.repeat({by})", f"torch.tile({x}, {by})")))


def pad(b: Builder) -> None:
    x = b.pick(has_dims)
    count = b.r.randint(1, min(3, len(b.shape(x))))
    by = tuple(b.r.randint(-1 if b.chance(0.1) else 0, 2) for _ in range(2 * count))
    mode = b.r.choice(("constant", "constant", "reflect", "replicate", "circular"))
    more = f", {b.r.choice(('0', '1', '-2'))}" if mode == "constant" else f', mode="{mode}"'
    b.emit(f"F.pad({x}, {by}{more})")


OPERATORS = (
    (5, reshape), (5, permute), (2, flatten), (2, ones), (6, slices), (2, narrow), (2, expand), (3, moved), (2, square),
    (2, split), (1, unbind), (5, join), (1, tile), (2, pad),
)  # fmt: skip
