"""Formats against their definitions: every code, and what is encoded."""

import numpy as np
import pytest
import torch
from torch import Tensor

from monotile.packing.bits import pack_bits, unpack_bits
from monotile.packing.format import Format
from monotile.packing.formats import format_named
from tests.packing import oracle

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NAMES = ("int8", "int4", "int2", "int1", "nf4", "fp8_e4m3", "fp8_e5m2", "mxfp4", "mxfp8")
# ||w - decoded|| / ||w|| of a Gaussian weight: between half of and all of these.
ERRORS = {
    "int8": 0.0075, "int4": 0.11, "int2": 0.42, "int1": 0.65, "nf4": 0.1, "fp8": 0.03, "fp8_e5m2": 0.06,
    "mxfp4": 0.13, "mxfp8": 0.04, "2:4": 0.4, "1:2": 0.45, "3:32": 0.85,
}  # fmt: skip


def gaussian(n: int, k: int) -> Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(n * k))


def every_byte() -> Tensor:
    """[32, 512] uint8, each row every byte twice, beginning elsewhere."""
    return (torch.arange(512) + 9 * torch.arange(32).view(-1, 1)).to(torch.uint8)


def same(found: Tensor, expected: np.ndarray) -> None:
    """Equal to the bit, NaN as NaN."""
    np.testing.assert_array_equal(found.double().numpy(), expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(
        np.signbit(found.double().numpy())[numbers], np.signbit(expected)[numbers]
    )


def tensors_of(name: str, format: Format, dtype: torch.dtype, symmetric: bool) -> dict[str, Tensor]:
    """All codes, with scales of many sizes."""
    codes = every_byte()
    elements = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
    elements["mxfp8"] = torch.float8_e4m3fn
    if name in elements:
        codes = codes.view(elements[name])
    elif name == "int8" and symmetric:
        codes = codes.view(torch.int8)
    per = 8 // int(name[3:]) if name.startswith("int") else 2 if name in ("nf4", "mxfp4") else 1
    n, groups = codes.shape[0], codes.shape[1] * per // 32
    tensors = {"codes": codes, **format.tables(torch.device("cpu"))}
    if name.startswith("mx"):
        tensors["exponents"] = (
            torch.arange(n * groups).view(n, groups).to(torch.uint8).view(torch.float8_e8m0fnu)
        )
    elif name == "nf4":
        tensors["absmax"] = gaussian(n, groups).exp()
    else:
        tensors["scale"] = (gaussian(n, groups) * 3).exp().to(dtype)
    if not symmetric:
        most = 256 if name == "int8" else 1 << int(name[3:])
        tensors["zero"] = torch.arange(n * groups).view(n, groups).remainder(most).to(torch.uint8)
    return tensors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("name", "symmetric"),
    [*((n, True) for n in NAMES), *((n, False) for n in ("int8", "int4", "int2"))],
)
def test_every_code(name: str, symmetric: bool, dtype: torch.dtype) -> None:
    format = format_named(name, 32, symmetric)
    tensors = tensors_of(name, format, dtype, symmetric)
    same(format.decode(tensors, dtype), oracle.decode(name, tensors, dtype))


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8"])
def test_every_shared_exponent(name: str) -> None:
    """Each with each code; among them products below the smallest normal number and above the largest."""
    format = format_named(name)
    tensors = {
        "codes": torch.arange(256, dtype=torch.uint8).repeat(256, 1),
        "exponents": torch.arange(256, dtype=torch.uint8)
        .view(-1, 1)
        .repeat(1, 8)
        .view(torch.float8_e8m0fnu),
        **format.tables(torch.device("cpu")),
    }
    if name == "mxfp8":
        tensors["codes"] = tensors["codes"].view(torch.float8_e4m3fn)
    else:
        tensors["exponents"] = (
            tensors["exponents"].view(torch.uint8).repeat(1, 2).view(torch.float8_e8m0fnu)
        )
    found = format.decode(tensors, torch.float32)
    same(found, oracle.decode(name, tensors, torch.float32))
    assert found[255].isnan().all()
    assert found[0, 2 if name == "mxfp4" else 1] == (2.0**-128 if name == "mxfp4" else 2.0**-136)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_bits(bits: int) -> None:
    codes = torch.randint(0, 1 << bits, (3, 64), dtype=torch.uint8)
    packed = pack_bits(codes, bits)
    assert packed.shape == (3, 8 * bits)
    assert torch.equal(unpack_bits(packed, bits), codes)
    assert [oracle.fields(row, bits) for row in packed.numpy()] == codes.tolist()


@pytest.mark.parametrize("size", [1, 0.01])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ERRORS)
def test_gaussian(name: str, dtype: torch.dtype, size: float) -> None:
    weight, format = (size * gaussian(64, 384)).to(dtype), format_named(name)
    tensors = {**format.encode(weight, dtype), **format.tables(weight.device)}
    decoded = format.decode(tensors, dtype)
    assert decoded.dtype == dtype
    same(decoded, oracle.decode(name, tensors, dtype))
    error = float((weight.double() - decoded).norm() / weight.double().norm())
    assert ERRORS[name] / 2 < error < ERRORS[name]


@pytest.mark.parametrize("name", ["int4", "int2", "int8"])
def test_a_zero_of_its_own_helps_where_weights_are_not_centred(name: str) -> None:
    weight, errors = gaussian(32, 256) + 2, list[float]()
    for symmetric in (True, False):
        format = format_named(name, symmetric=symmetric)
        tensors = format.encode(weight, torch.float32)
        errors.append(float((weight - format.decode(tensors, torch.float32)).norm()))
    assert errors[1] < errors[0]


@pytest.mark.parametrize("name", ERRORS)
def test_noughts_and_tiny_weights(name: str) -> None:
    """A group of noughts decodes to noughts, and nothing is NaN where a scale is nought in float16."""
    format = format_named(name)
    weight = torch.cat([torch.zeros(1, 384), torch.full((1, 384), 1e-7)]).to(torch.float16)
    tensors = {**format.encode(weight, torch.float16), **format.tables(weight.device)}
    decoded = format.decode(tensors, torch.float16)
    assert not decoded[0].any()
    assert (decoded[1].abs() <= 4e-7).all()


@pytest.mark.parametrize("name", ["nf4", "mxfp4", "mxfp8", "2:4"])
def test_what_was_decoded_is_encoded_exactly(name: str) -> None:
    format, decoded = format_named(name), gaussian(16, 256)
    found = list[Tensor]()
    for _ in range(2):
        tensors = format.encode(decoded, torch.float32)
        decoded = format.decode({**tensors, **format.tables(decoded.device)}, torch.float32)
        found.append(decoded)
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("x", "code"),
    [(0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6), (5.1, 7), (7.9, 7), (-5.0, 14), (-0.0, 8)],
)  # fmt: skip
def test_mxfp4_rounds_ties_to_even(x: float, code: int) -> None:
    """In a block whose largest number is 4 to 8, so that the shared power is 1."""
    weight = torch.zeros(1, 32)
    weight[0, :2] = torch.tensor([x, 4.0])
    tensors = format_named("mxfp4").encode(weight, torch.float32)
    assert tensors["exponents"].view(torch.uint8).item() == 127
    assert int(tensors["codes"][0, 0]) % 16 == code


def test_mxfp8_shares_the_power_of_the_largest() -> None:
    weight = torch.zeros(1, 64)
    weight[0, 0], weight[0, 1], weight[0, 32] = 500.0, 2.0**-9, 2.0**-140
    format = format_named("mxfp8")
    tensors = format.encode(weight, torch.float32)
    assert tensors["exponents"].view(torch.uint8).tolist() == [[127, 0]]
    decoded = format.decode({**tensors, **format.tables(weight.device)}, torch.float32)
    assert decoded[0, :2].tolist() == [448.0, 2.0**-9]


def test_positions_are_of_the_largest_and_ascend() -> None:
    weight = torch.tensor([[1.0, -4.0, 2.0, 3.0, 5.0, 5.0, 5.0, 5.0]])
    tensors = format_named("2:4").encode(weight, torch.float32)
    assert tensors["values"].tolist() == [[[-4.0, 3.0], [5.0, 5.0]]]
    assert tensors["positions"].tolist() == [[0b01001101]]  # 1, 3, 0, 1
    odd = format_named("2:4").encode(weight[:, :4], torch.float32)  # no whole byte
    assert odd["positions"].tolist() == [[[1, 3]]]


def test_vectors_of_rows_share_their_positions() -> None:
    torch.manual_seed(0)
    weight = torch.randn(128, 64)
    format = format_named("4:16x32")
    tensors = format.encode(weight, torch.float32)
    assert tensors["values"].shape == (128, 4, 4)
    assert tensors["positions"].shape == (4, 4, 4)
    decoded = format.decode(tensors, torch.float32)
    vectors = (decoded != 0).unflatten(0, (4, 32))
    assert (vectors == vectors[:, :1]).all()
    assert ((decoded == weight) | (decoded == 0)).all()
    kept = weight.unflatten(0, (4, 32)).square().sum(1).unflatten(-1, (-1, 16)).topk(4).indices
    assert (kept.sort().values == tensors["positions"].long()).all()
