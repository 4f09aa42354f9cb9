"""Element-wise operators and activations."""

import pytest
import torch
import torch.nn.functional as F

from monotile.frontends.torch.export import export
from monotile.frontends.torch.graph import is_lowered
from tests.frontend.against import Operators, check_operators

INF, NAN = float("inf"), float("nan")

FLOAT_UNARY = [
    "exp",
    "exp2",
    "expm1",
    "sin",
    "cos",
    "tan",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "erf",
    "erfc",
    "neg",
    "abs",
    "sign",
    "ceil",
    "floor",
    "trunc",
    "round",
    "square",
    "reciprocal",
    "frac",
    "sigmoid",
    "relu",
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
    "sinc",
    "sgn",
    "positive",
]
POSITIVE_UNARY = ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "lgamma"]
UNIT_UNARY = ["asin", "acos", "atanh"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_unary(dtype: torch.dtype) -> None:
    x = torch.linspace(-2.4, 2.3, 12).to(dtype)
    functions = {n: (lambda a, b, n=n: getattr(torch, n)(a)) for n in FLOAT_UNARY}
    functions |= {n: (lambda a, b, n=n: getattr(torch, n)(b)) for n in POSITIVE_UNARY}
    functions |= {n: (lambda a, b, n=n: getattr(torch, n)(b / 4)) for n in UNIT_UNARY}
    functions["acosh"] = lambda a, b: torch.acosh(b + 1)
    check_operators(functions, x, x.abs() + 0.1)


def test_other_names() -> None:
    """None of them has the model traced again."""
    x, y = torch.rand(4, 5) - 0.5, torch.rand(4, 5) + 0.1
    unary = ("absolute", "negative", "arctan", "arcsinh", "arcsin", "arccos", "arctanh")
    binary = ("multiply", "subtract", "divide", "greater", "greater_equal", "less", "less_equal", "not_equal")  # fmt: skip
    functions = {n: (lambda a, b, n=n: getattr(torch, n)(a)) for n in unary}
    functions |= {n: (lambda a, b, n=n: getattr(torch, n)(a, b)) for n in binary}
    functions["arccosh"] = lambda a, b: torch.arccosh(b + 1)
    functions["floor"] = lambda a, b: torch.divide(a, b, rounding_mode="floor")
    functions["in place"] = lambda a, b: a.exp().multiply_(b).subtract_(a, alpha=2).divide_(3)
    check_operators(functions, x, y)
    assert is_lowered(export(Operators(functions | {"in place": torch.add}), (x, y)).graph_module)


def test_integers_become_floats() -> None:
    names = ["exp", "sin", "sqrt", "sigmoid", "reciprocal"]
    functions = {n: (lambda a, n=n: getattr(torch, n)(a)) for n in names}
    functions |= {n: (lambda a, n=n: getattr(torch, n)(a)) for n in ["floor", "abs", "neg", "sign"]}
    check_operators(functions, torch.tensor([1, 4, 9], dtype=torch.int32))


def test_special_values() -> None:
    x = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.5])
    y = torch.tensor([1.0, NAN, 2.0, -0.0, 0.0, NAN])
    check_operators(
        {
            "sign": lambda a, b: torch.sign(a),
            "sgn": lambda a, b: torch.sgn(a),
            "relu": lambda a, b: F.relu(a),
            "maximum": torch.maximum,
            "minimum": torch.minimum,
            "fmax": torch.fmax,
            "fmin": torch.fmin,
            "clamp": lambda a, b: a.clamp(-1, 1),
            "isposinf": lambda a, b: torch.isposinf(a),
            "isneginf": lambda a, b: torch.isneginf(a),
            "isfinite": lambda a, b: torch.isfinite(a),
            "nan_to_num": lambda a, b: torch.nan_to_num(a),
            "nan_to_num_given": lambda a, b: torch.nan_to_num(a, 1.0, 2.0, 3.0),
            "xlogy": torch.xlogy,
            "heaviside": torch.heaviside,
            "logaddexp": torch.logaddexp,
            "signbit": lambda a, b: torch.signbit(a),
            "eq": lambda a, b: a == b,
        },
        x,
        y,
    )


def test_binary_with_broadcasting() -> None:
    check_operators(
        {
            "add": lambda a, b, c: a + b,
            "add_alpha": lambda a, b, c: torch.add(a, b, alpha=0.5),
            "sub": lambda a, b, c: a - b,
            "rsub": lambda a, b, c: 2 - a,
            "mul": lambda a, b, c: a * b,
            "div": lambda a, b, c: a / b,
            "div_floor": lambda a, b, c: torch.div(a, b, rounding_mode="floor"),
            "div_trunc": lambda a, b, c: torch.div(a, b, rounding_mode="trunc"),
            "floor_divide": lambda a, b, c: a // b,
            "remainder": lambda a, b, c: a % b,
            "fmod": lambda a, b, c: torch.fmod(a, b),
            "pow": lambda a, b, c: a.abs() ** b,
            "atan2": lambda a, b, c: torch.atan2(a, b),
            "copysign": lambda a, b, c: torch.copysign(a, b),
            "hypot": lambda a, b, c: torch.hypot(a, b),
            "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=2),
            "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c + 3, value=0.5),
            "lerp": lambda a, b, c: torch.lerp(a, b, 0.3),
            "lerp_tensor": lambda a, b, c: torch.lerp(a, b, c),
            "where": lambda a, b, c: torch.where(a > 0, b, c),
            "where_scalar": lambda a, b, c: torch.where(a > 0, a, 0.0),
            "masked_fill": lambda a, b, c: a.masked_fill(a > 0, -1.0),
            "clamp_tensor": lambda a, b, c: torch.clamp(a, b, c.abs() + 1),
            "clamp_min": lambda a, b, c: a.clamp_min(0.2),
            "clamp_max": lambda a, b, c: a.clamp_max(0.2),
            "compare": lambda a, b, c: (a < b) | (a >= c) & ~(b != c),
            "logical_xor": lambda a, b, c: torch.logical_xor(a > 0, b > 0),
            "isclose": lambda a, b, c: torch.isclose(a, a + 1e-9),
        },
        torch.randn(3, 1, 4),
        torch.randn(2, 4),
        torch.randn(4),
    )


def test_factors_come_before_products_that_overflow() -> None:
    check_operators(
        {
            "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
            "addcdiv": lambda a, b: torch.addcdiv(a, a, 1 / b, value=0.5),
        },
        torch.tensor([2.0, -2.0]),
        torch.tensor([3e38, 2e38]),
    )


def test_integer_arithmetic() -> None:
    x = torch.tensor([-7, -3, 0, 5, 9], dtype=torch.int64)
    y = torch.tensor([3, -2, 4, -5, 2], dtype=torch.int64)
    check_operators(
        {
            "floor_divide": lambda a, b: a // b,
            "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
            "div": lambda a, b: a / b,
            "remainder": lambda a, b: a % b,
            "fmod": lambda a, b: torch.fmod(a, b),
            "pow": lambda a, b: a**3,
            "pow_tensor": lambda a, b: a ** b.abs(),
            "and": lambda a, b: a & b,
            "or": lambda a, b: a | b,
            "xor": lambda a, b: a ^ b,
            "not": lambda a, b: ~a,
            "shl": lambda a, b: a << b.abs(),
            "shr": lambda a, b: a >> 1,
            "add_float": lambda a, b: a + 0.5,
            "to_bool": lambda a, b: a.bool() & b.bool(),
            "bool_sum": lambda a, b: (a > 0) + (b > 0),
            "bool_product": lambda a, b: (a > 0) * (b > 0),
            "uint8": lambda a, b: a.to(torch.uint8) + b.to(torch.uint8),
            "int32": lambda a, b: a.to(torch.int32) * b.to(torch.int8),
            "clamp": lambda a, b: a.clamp(-2, 3),
            "maximum": torch.maximum,
            "sign": lambda a, b: torch.sign(a),
        },
        x,
        y,
    )


def test_promotion() -> None:
    check_operators(
        {
            "f16_f32": lambda h, f, i, s: h + f,
            "f16_bf16": lambda h, f, i, s: h + h.bfloat16(),
            "f16_scalar_tensor": lambda h, f, i, s: h * s,
            "int_float": lambda h, f, i, s: i * f,
            "int_half": lambda h, f, i, s: i + h,
            "int_scalar_tensor": lambda h, f, i, s: i / s,
            "compare_int_float": lambda h, f, i, s: i < 1.5,
            "compare_half": lambda h, f, i, s: h == 0.1,
            "f16_number": lambda h, f, i, s: h * 3.3,
            "where": lambda h, f, i, s: torch.where(i > 1, h, f),
            "to": lambda h, f, i, s: (f * 3).to(torch.int32),
        },
        torch.randn(3).half(),
        torch.randn(3),
        torch.tensor([1, 2, 3]),
        torch.tensor(2.5),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_activations(dtype: torch.dtype) -> None:
    x = torch.linspace(-5, 5, 24).reshape(2, 4, 3).to(dtype)
    check_operators(
        {
            "gelu": lambda a, w: F.gelu(a),
            "gelu_tanh": lambda a, w: F.gelu(a, approximate="tanh"),
            "silu": lambda a, w: F.silu(a),
            "mish": lambda a, w: F.mish(a),
            "hardswish": lambda a, w: F.hardswish(a),
            "hardsigmoid": lambda a, w: F.hardsigmoid(a),
            "hardtanh": lambda a, w: F.hardtanh(a, -0.3, 0.4),
            "relu6": lambda a, w: F.relu6(a),
            "leaky_relu": lambda a, w: F.leaky_relu(a, 0.1),
            "rrelu": lambda a, w: F.rrelu(a, 0.1, 0.5),
            "prelu": lambda a, w: F.prelu(a, w),
            "elu": lambda a, w: F.elu(a, 0.7),
            "selu": lambda a, w: F.selu(a),
            "celu": lambda a, w: F.celu(a, 1.3),
            "softplus": lambda a, w: F.softplus(a, 2.0, 3.0),
            "softsign": lambda a, w: F.softsign(a),
            "tanhshrink": lambda a, w: F.tanhshrink(a),
            "hardshrink": lambda a, w: F.hardshrink(a),
            "softshrink": lambda a, w: F.softshrink(a),
            "threshold": lambda a, w: F.threshold(a, 0.1, 20.0),
            "logsigmoid": lambda a, w: F.logsigmoid(a),
            "logit": lambda a, w: torch.logit(torch.sigmoid(a), 1e-3),
            "glu": lambda a, w: F.glu(a, 1),
        },
        x,
        torch.linspace(0.1, 0.4, 4).to(dtype),
        tolerance=None if dtype is torch.float32 else 1e-2,
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_numbers_beyond_an_integer_type_wrap_around(dtype: torch.dtype) -> None:
    far = 2**33 + 5 if dtype is torch.int32 else 1005
    x = torch.tensor([0, 1, 7, 100, 127]).to(dtype)
    check_operators(
        {
            "add": lambda v: v + far,
            "negative": lambda v: v + -far,
            "from": lambda v: far - v,
            "times": lambda v: v * far,
            "less": lambda v: v < far,
            "equal": lambda v: v == far,
            "minus_one": lambda v: v == -1,
            "mask": lambda v: v & -2,
            "quotient": lambda v: v // far,
            "remainder": lambda v: v % far,
        },
        x,
    )
