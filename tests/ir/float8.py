"""8-bit floats as PyTorch converts them on the CPU."""

from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Load, Tensor
from monotile.ir.program import Compute, Program, compute
from monotile.runtime.tensors import torch_dtype

TYPES = (DType.F8E4M3, DType.F8E5M2, DType.F8E8M0)
FLOATS = (DType.F32, DType.F16, DType.BF16, DType.F64)
CODES = np.arange(256, dtype=np.uint8)
HALFWAY = 464  # between the largest float8_e4m3fn and what would come next
QUIET: Any = {"all": "ignore"}


def sweep(count: int = 200_000) -> NDArray[np.float32]:
    """Random bits, all numbers of 8 bits, those halfway between two, the neighbours of all these, and edges."""
    random = np.random.default_rng(0).integers(0, 1 << 32, count, np.uint32).view(np.float32)
    with np.errstate(**QUIET):
        numbers = np.concatenate([CODES.view(t.numpy).astype(np.float64) for t in TYPES])
        numbers = np.unique(np.abs(numbers[np.isfinite(numbers)]))
        more = [(numbers[1:] + numbers[:-1]) / 2, [HALFWAY, 480, 61440, 65536, np.inf, np.nan]]
        edges = np.concatenate([numbers, *more]).astype(np.float32)
        around = [np.nextafter(edges, np.float32(to)) for to in (0, np.inf)]
    edges = np.concatenate([edges, *around])
    return np.concatenate([random, edges, -edges])


def values(dtype: DType) -> NDArray[Any]:
    """Floats of all kinds; every one of 16 bits."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(**QUIET):
        wide = sweep().astype(np.float64)
        match dtype:
            case DType.F16 | DType.BF16:
                return bits.view(dtype.numpy)
            case DType.F32:
                return sweep()
            case _:  # not only what float32 has
                return np.concatenate([wide, wide * (1 + 2.0**-40)])


def tensor(x: NDArray[Any]) -> torch.Tensor:
    """The same bits."""
    dtype = DType.from_numpy(x.dtype)
    bits = x.view({1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[dtype.itemsize])
    return torch.from_numpy(bits.copy()).view(torch_dtype(dtype))


def array(x: torch.Tensor) -> NDArray[Any]:
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]
    return x.view(bits).numpy().view(getattr(ml_dtypes, str(x.dtype)[6:], str(x.dtype)[6:]))


def encoded(x: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """By PyTorch; what is too large for float8_e4m3fn is NaN, which it is not in each version."""
    found = array(tensor(x).to(torch_dtype(dtype))).copy()
    if dtype is DType.F8E4M3:
        with np.errstate(**QUIET):
            found[np.abs(x.astype(np.float32)) > HALFWAY] = np.nan
    return found


def decoded(dtype: DType, to: DType) -> NDArray[Any]:
    return array(tensor(CODES.view(dtype.numpy)).to(torch_dtype(to)))


def same(found: NDArray[Any], want: NDArray[Any]) -> None:
    """Bit for bit; which NaN is open, as it is in PyTorch."""
    assert found.dtype == want.dtype
    bits = np.dtype(f"uint{8 * want.dtype.itemsize}")
    with np.errstate(**QUIET):  # PyTorch's NaN may be a signalling one
        missing = np.isnan(want.astype(np.float64))
        np.testing.assert_array_equal(np.isnan(found.astype(np.float64)), missing)
    np.testing.assert_array_equal(found.view(bits)[~missing], want.view(bits)[~missing])


def casts(dtype: DType) -> tuple[Program, dict[str, NDArray[Any]], list[NDArray[Any]]]:
    """A Program of casts from and to `dtype`, its inputs, and PyTorch's results."""
    code = Tensor("code", (256,), dtype)
    given = {"code": CODES.view(dtype.numpy)}
    want: list[NDArray[Any]] = []
    body: list[Compute] = []

    def cast(x: Tensor, to: DType, result: NDArray[Any]) -> None:
        out = Tensor(f"y{len(body)}", x.shape, to)

        def one(i: Expr) -> Expr:
            return Load(x, (i,))

        body.append(compute(out, one))
        want.append(result)

    for to in FLOATS:
        cast(code, to, decoded(dtype, to))
    for to in TYPES:
        cast(code, to, encoded(given["code"], to))
    inputs = [code]
    for source in FLOATS:
        x = values(source)
        t = Tensor(f"x{source}", x.shape, source)
        inputs.append(t)
        given[t.name] = x
        cast(t, dtype, encoded(x, dtype))
    outs = tuple(s.out for s in body)
    return Program(tuple(inputs), (), tuple(body), outs), given, want
