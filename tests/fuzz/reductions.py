"""Over axes: sums, extremes, positions, normalising functions, running sums."""

import torch

from tests.fuzz.builder import Builder, is_float
from tests.fuzz.pointwise import is_bool, is_int
from tests.fuzz.runs import Rejected


def dims(b: Builder, x: str) -> str:
    rank = len(b.shape(x))
    if rank == 0:
        b.dim(x)
    chosen = b.r.sample(range(rank), b.r.randint(1, rank))
    return str(tuple(d - rank if b.chance(0.4) else d for d in chosen))


def keep(b: Builder) -> str:
    return ", keepdim=True" if b.chance(0.5) else ""


def several(b: Builder) -> None:
    """Over any set of axes."""
    x = b.pick(is_float)
    name = b.r.choice(
        ("sum", "sum", "mean", "mean", "amax", "amin", "var", "std", "logsumexp", "norm")
    )
    if b.chance(0.15) and name not in ("logsumexp", "norm"):
        b.emit(f"torch.{name}({x})")
    elif name in ("var", "std"):
        b.emit(f"torch.{name}({x}, {dims(b, x)}, correction={b.r.choice((0, 1))}{keep(b)})")
    elif name == "norm":
        order = b.r.choice(("2", "1", "3", 'float("inf")', "0.5"))
        b.emit(f"torch.linalg.vector_norm({x}, {order}, dim={dims(b, x)}{keep(b)})")
    else:
        b.emit(f"torch.{name}({x}, {dims(b, x)}{keep(b)})")


def of_integers(b: Builder) -> None:
    x = b.pick(is_int)
    name = b.r.choice(("sum", "amax", "amin", "prod", "cumsum", "argmax", "count_nonzero"))
    if name in ("sum", "amax", "amin"):
        b.emit(f"torch.{name}({x}, {dims(b, x)}{keep(b)})")
    else:
        b.emit(f"torch.{name}({x}, {b.dim(x)})")


def of_truths(b: Builder) -> None:
    x = b.pick(is_bool)
    name = b.r.choice(("any", "all", "sum", "cumsum"))
    b.emit(
        f"torch.{name}({x}, {b.dim(x)})"
        if b.chance(0.8) or name == "cumsum"
        else f"torch.{name}({x})"
    )


def one(b: Builder) -> None:
    """Over one axis, or all."""
    x = b.pick(is_float)
    name = b.r.choice(("argmax", "argmin", "prod", "any", "all", "count_nonzero"))
    if b.chance(0.2):
        b.emit(f"torch.{name}({x})")
    else:
        b.emit(f"torch.{name}({x}, {b.dim(x)}{'' if name == 'count_nonzero' else keep(b)})")


def pairs(b: Builder) -> None:
    """Operators with two results."""
    x = b.pick(is_float)
    if b.chance(0.5):
        what = b.r.choice(
            ("var_mean({}, {dims}{keep})", "std_mean({}, {dims}{keep})", "aminmax({}, dim={dim})")
        )
        b.emit("torch." + what.format(x, dims=dims(b, x), dim=b.dim(x), keep=keep(b)), 2)
        return
    d = b.dim(x)
    if not distinct(b.value(x), d):  # which of equal values is meant is left open
        raise Rejected("equal values")
    what = b.r.choice(
        (
            "max({}, {}{keep})",
            "min({}, {}{keep})",
            "cummax({}, {})",
            "median({}, {})",
            "topk({0}, {k}, {1})",
            "sort({0}, dim={1})",
        )
    )
    b.emit("torch." + what.format(x, d, keep=keep(b), k=b.r.randint(1, max(b.shape(x)[d], 1))), 2)


def distinct(x: torch.Tensor, d: int) -> bool:
    return not bool((x.sort(d).values.diff(dim=d) == 0).any()) and bool(torch.isfinite(x).all())


def softmax(b: Builder) -> None:
    x = b.pick(is_float)
    name = b.r.choice(("softmax", "softmax", "log_softmax"))
    more = ", dtype=t.f32" if b.chance(0.2) else ""
    b.emit(f"F.{name}({x}, {b.dim(x)}{more})")


def running(b: Builder) -> None:
    x = b.pick(is_float)
    b.emit(f"torch.{b.r.choice(('cumsum', 'cumsum', 'cumprod', 'logcumsumexp'))}({x}, {b.dim(x)})")


def centred(b: Builder) -> None:
    """A reduction that is read beside what it reduces."""
    x = b.pick(is_float, lambda t: t.dim() > 0)
    d = b.dim(x)
    what = b.r.choice(("mean", "amax", "sum", "std"))
    more = {"std": ", correction=0"}.get(what, "")
    (m,) = b.emit(f"torch.{what}({x}, {d}{more}, keepdim=True)")
    b.emit(
        b.r.choice((f"{x} - {m}", f"{x} * {m}", f"{x} / ({m}.abs() + 1)", f"torch.exp({x} - {m})"))
    )


def diff(b: Builder) -> None:
    x = b.pick(is_float, lambda t: t.dim() > 0)
    b.emit(f"torch.diff({x}, dim={b.dim(x)})")


def chain(b: Builder) -> None:
    """A sum of a sum."""
    x = b.pick(is_float, lambda t: t.dim() > 1)
    (y,) = b.emit(f"torch.{b.r.choice(('sum', 'mean', 'amax'))}({x}, {b.dim(x)})")
    assert isinstance(b.value(y), torch.Tensor)
    b.emit(f"torch.{b.r.choice(('sum', 'mean', 'amax'))}({y}, {b.dim(y)})")


OPERATORS = (
    (8, several), (2, of_integers), (1, of_truths), (2, one), (2, pairs), (4, softmax), (2, running), (4, centred),
    (1, diff), (1, chain),
)  # fmt: skip
