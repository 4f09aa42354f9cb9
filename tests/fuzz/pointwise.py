"""Element by element: functions, arithmetic with promotion, comparisons, choices, casts."""

import torch

from tests.fuzz.builder import LIMIT, Builder, is_finite, is_float
from tests.fuzz.runs import Rejected

UNARY = """
torch.relu torch.tanh torch.sigmoid torch.exp torch.sin torch.cos torch.erf torch.abs torch.neg torch.square torch.sqrt
torch.rsqrt torch.log torch.log1p torch.expm1 torch.reciprocal torch.floor torch.ceil torch.round torch.trunc torch.frac
torch.sign torch.atan torch.asinh torch.sinh torch.cosh torch.tan torch.exp2 torch.log2 torch.log10 torch.isnan torch.isfinite
torch.signbit torch.nan_to_num torch.erfc torch.acos torch.atanh torch.logit torch.sinc torch.lgamma torch.deg2rad torch.sgn
F.gelu F.silu F.softplus F.elu F.leaky_relu F.relu6 F.hardswish F.hardsigmoid F.mish F.selu F.celu F.logsigmoid F.softsign
F.hardtanh F.softshrink F.hardshrink torch.positive torch.isinf
""".split()
BINARY = """
torch.maximum torch.minimum torch.fmax torch.fmin torch.atan2 torch.hypot torch.copysign torch.logaddexp torch.xlogy
torch.remainder torch.fmod torch.floor_divide torch.heaviside
""".split()
ARITHMETIC = ("+", "+", "-", "*", "*", "/")
COMPARE = ("<", "<=", ">", ">=", "==", "!=")


def is_int(x: torch.Tensor) -> bool:
    return not x.is_floating_point() and x.dtype is not torch.bool


def is_bool(x: torch.Tensor) -> bool:
    return x.dtype is torch.bool


def partner(b: Builder, x: str, dtype: str | None = None) -> str:
    """A value that broadcasts with `x`; an old one if there is one, else a new leaf of its shape with some ones."""
    shape = b.shape(x)

    def fits(y: torch.Tensor) -> bool:
        try:
            full = torch.broadcast_shapes(y.shape, shape)
        except RuntimeError:
            return False
        return full.numel() <= LIMIT and (dtype is None or y.dtype is b.value(x).dtype)

    if b.chance(0.65):
        try:
            return b.pick(fits)
        except Rejected:
            pass
    keep = shape[b.r.randint(0, len(shape)) :] if b.chance(0.4) else shape
    wanted = [1 if b.chance(0.2) else n for n in keep]
    kind = (
        dtype
        or b.r.choices(
            (b.dtype, "f32", "f16", "f64", "i64", "i32", "i8"), weights=(24, 3, 1, 1, 3, 1, 1)
        )[0]
    )
    if kind.startswith("i"):
        return b.integers(-5, 6, wanted, kind)
    return b.floats(wanted, kind)


def unary(b: Builder) -> None:
    x = b.pick(is_float)
    b.emit(f"{b.r.choice(UNARY)}({x})")


def activation(b: Builder) -> None:
    """The common ones, which leave magnitudes as they are."""
    x = b.pick(is_float)
    name = b.r.choice(
        ("torch.relu", "torch.tanh", "torch.sigmoid", "F.gelu", "F.silu", "torch.sin")
    )
    more = ', approximate="tanh"' if name == "F.gelu" and b.chance(0.4) else ""
    b.emit(f"{name}({x}{more})")


def arithmetic(b: Builder) -> None:
    x = b.pick()
    y = b.scalar() if b.chance(0.25) else partner(b, x)
    if b.chance(0.3):
        x, y = y, x
    b.emit(f"{x} {b.r.choice(ARITHMETIC)} {y}")


def binary(b: Builder) -> None:
    x = b.pick(is_float)
    b.emit(f"{b.r.choice(BINARY)}({x}, {partner(b, x, b.dtype_of(x))})")


def power(b: Builder) -> None:
    x = b.pick(is_float)
    if b.chance(0.3):
        b.emit(f"torch.pow({b.positive(b.shape(x), b.dtype_of(x))}, {x})")
    else:
        b.emit(f"{x} ** {b.r.choice(('2', '3', '0.5', '-1', '0', '1', '2.5'))}")


def integer(b: Builder) -> None:
    """Arithmetic and bits of integers."""
    x = b.pick(is_int)
    match b.r.randrange(4):
        case 0:
            y = b.integers(1, 7, b.shape(x), b.dtype_of(x))
            b.emit(f"{x} {b.r.choice(('//', '%'))} {y}")
        case 1:
            y = partner(b, x, b.dtype_of(x))
            b.emit(f"{x} {b.r.choice(('&', '|', '^', '*', '-'))} {y}")
        case 2:
            b.emit(f"{x} {b.r.choice(('<<', '>>'))} {b.r.randint(0, 3)}")
        case _:
            b.emit(
                b.r.choice((f"~{x}", f"-{x}", f"torch.abs({x})", f"torch.sign({x})", f"{x} ** 2"))
            )


def comparison(b: Builder) -> None:
    x = b.pick()
    b.emit(f"{x} {b.r.choice(COMPARE)} {b.scalar() if b.chance(0.5) else partner(b, x)}")


def logic(b: Builder) -> None:
    x = b.pick(is_bool)
    y = b.mask(b.shape(x)) if b.chance(0.4) else partner(b, x, "bool") if has_bool(b, x) else x
    b.emit(
        b.r.choice(
            (f"{x} & {y}", f"{x} | {y}", f"{x} ^ {y}", f"~{x}", f"torch.logical_and({x}, {y})")
        )
    )


def has_bool(b: Builder, x: str) -> bool:
    same = [n for n in b.pool if b.value(n).dtype is torch.bool and b.shape(n) == b.shape(x)]
    return len(same) > 1


def where(b: Builder) -> None:
    x = b.pick()
    masks = [n for n in b.pool if b.value(n).dtype is torch.bool and broadcasts(b, n, x)]
    condition = b.r.choice(masks) if masks and b.chance(0.7) else b.mask(b.shape(x))
    y = b.scalar() if b.chance(0.3) else partner(b, x)
    fill = b.r.choice(("0", "1", "-1", '-float("inf")'))
    b.emit(
        b.r.choice(
            (
                f"torch.where({condition}, {x}, {y})",
                f"torch.where({condition}, {y}, {x})",
                f"{x}.masked_fill({condition}, {fill})",
            )
        )
    )


def broadcasts(b: Builder, x: str, y: str) -> bool:
    try:
        return torch.broadcast_shapes(b.shape(x), b.shape(y)).numel() <= LIMIT
    except RuntimeError:
        return False


def clamp(b: Builder) -> None:
    x = b.pick(is_float)
    b.emit(
        b.r.choice(
            (
                f"torch.clamp({x}, -0.75, 0.5)",
                f"torch.clamp({x}, min=0.1)",
                f"torch.clamp({x}, max=0.3)",
            )
        )
    )


def three(b: Builder) -> None:
    x = b.pick(is_float)
    y, z = partner(b, x, b.dtype_of(x)), partner(b, x, b.dtype_of(x))
    match b.r.randrange(4):
        case 0:
            b.emit(f"torch.lerp({x}, {b.floats(b.shape(x), b.dtype_of(x))}, 0.3)")
        case 1:
            b.emit(f"torch.addcmul({x}, {y}, {z}, value=0.5)")
        case 2:
            b.emit(f"torch.addcdiv({x}, {y}, {b.positive(b.shape(x), b.dtype_of(x))})")
        case _:
            b.emit(f"{x} + {y} * {z}")


def cast(b: Builder) -> None:
    """Floats of a size that integers hold; anything to floats and bool."""
    x = b.pick(is_finite)
    small = bool((b.value(x).abs() < 100).all()) if b.value(x).dtype is not torch.bool else True
    kinds = ("f32", "f16", "bf16", "f64", "bool", *(("i64", "i32", "i8") if small else ()))
    b.emit(f"{x}.to(t.{b.r.choice(kinds)})")


def constant(b: Builder) -> None:
    """What depends on no argument."""
    n = b.r.choice((3, 5, 8, 16))
    b.emit(
        b.r.choice(
            (
                f"torch.arange({n})",
                f"torch.arange(0, {n}, 2).to(t.{b.dtype})",
                f"torch.linspace(-1, 1, {n}, dtype=t.{b.dtype})",
                f"torch.ones(({n}, {n}), dtype=t.bool).tril()",
                f"torch.zeros((2, {n}), dtype=t.{b.dtype})",
                f"torch.eye({n}, dtype=t.{b.dtype})",
                f"torch.full(({n},), 0.3, dtype=t.{b.dtype})",
            )
        )
    )


OPERATORS = (
    (5, unary), (5, activation), (10, arithmetic), (3, binary), (1, power), (2, integer), (2, comparison), (2, logic),
    (4, where), (1, clamp), (2, three), (3, cast), (1, constant),
)  # fmt: skip
