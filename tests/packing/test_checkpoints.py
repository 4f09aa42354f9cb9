"""Packed checkpoints of others: each weight is exactly what its source decodes to."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import monotile
from monotile.errors import InputError
from monotile.packing.layer import PackedLinear
from tests.packing import checkpoints as written

N, K = 48, 128
SHUFFLED = [int(i) for i in np.random.default_rng(3).permutation(np.arange(K) // 32)]


class Model(nn.Module):
    """A head that is tied to the embedding, and between them the layer that a checkpoint packs."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(20, K)
        self.up = nn.Linear(K, N, bias=bias)
        self.down = nn.Linear(N, K)
        self.head = nn.Linear(K, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.down(self.up(self.words(ids))))


def rest(dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    """What the checkpoint has dense; the head is left out, as it is tied."""
    g = torch.Generator().manual_seed(4)
    shapes = {"words.weight": (20, K), "down.weight": (K, N), "down.bias": (K,), "up.bias": (N,)}
    return {name: torch.randn(*s, generator=g).to(dtype) for name, s in shapes.items()}


def loaded(layer: dict[str, Tensor], dtype: torch.dtype = torch.float16) -> nn.Module:
    with torch.device("meta"):
        model = Model()
    return monotile.load_packed(model, rest(dtype) | written.named("up", layer))


def check(model: nn.Module, weight: Tensor) -> PackedLinear:
    """The layer has the weight to the bit, and the model computes with it."""
    packed = model.get_submodule("up")
    assert isinstance(packed, PackedLinear)
    assert packed.weight.dtype == weight.dtype
    assert torch.equal(packed.weight, weight)
    dense = Model()
    state = rest(weight.dtype) | {"up.weight": weight}
    dense.load_state_dict(state | {"head.weight": state["words.weight"]}, assign=True)
    ids = torch.arange(6).view(2, 3)
    torch.testing.assert_close(model(ids).float(), dense(ids).float(), rtol=1e-2, atol=1e-1)
    assert model.get_parameter("head.weight") is model.get_parameter("words.weight")
    return packed


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gptq(bits: int) -> None:
    tensors, weight = written.gptq(N, K, bits, 32)
    packed = check(loaded(tensors), torch.from_numpy(weight))
    assert packed.format.name == f"int{bits}"
    assert packed.order is None
    del tensors["g_idx"]
    check(loaded(tensors), torch.from_numpy(weight))


@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_in_the_order_of_activations(bits: int) -> None:
    tensors, weight = written.gptq(N, K, bits, 32, SHUFFLED)
    model = loaded(tensors)
    packed = check(model, torch.from_numpy(weight))
    assert packed.order is not None
    x = torch.randn(3, K)
    expected = torch.nn.functional.linear(x, packed.float().weight, packed.bias)
    torch.testing.assert_close(packed(x), expected, rtol=1e-4, atol=1e-4)
    fast = monotile.compile(packed, (x,), target="cpu", options=monotile.Options(cache=False))
    torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-4)
    assert packed.to(torch.float16).order is not None


@pytest.mark.parametrize("bits", [4, 8])
def test_zeros_that_are_half_of_all_codes_are_not_stored(bits: int) -> None:
    tensors, _ = written.gptq(N, K, bits, 32)
    middle = 1 << (bits - 1)
    stored = written.word([middle - 1] * (32 // bits), bits)
    tensors["qzeros"] = torch.full_like(tensors["qzeros"], int(stored))
    found = loaded(tensors).get_submodule("up")
    assert isinstance(found, PackedLinear)
    assert set(found.packed) == {"codes", "scale"}
    codes = tensors["qweight"].numpy().view(np.uint32)
    expected = (int(codes[0, 0]) % (1 << bits) - middle) * tensors["scales"][0, 0]
    assert found.weight[0, 0] == expected


def test_awq() -> None:
    tensors, weight = written.awq(N, K, 32)
    assert check(loaded(tensors), torch.from_numpy(weight)).format.name == "int4"


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bitsandbytes(dtype: torch.dtype, nested: bool) -> None:
    tensors, weight = written.nf4(N, K, str(dtype).removeprefix("torch."), nested)
    packed = check(loaded(tensors, dtype), torch.from_numpy(weight).to(dtype))
    assert packed.format.name == "nf4"


def test_files(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tensors, weight = written.gptq(N, K, 4, 32)
    safetensors.save_file(written.named("up", tensors), tmp_path / "a.safetensors")
    safetensors.save_file(rest(), tmp_path / "b.safetensors")
    check(monotile.load_packed(Model(), tmp_path), torch.from_numpy(weight))
    safetensors.save_file(rest() | written.named("up", tensors), tmp_path / "whole.safetensors")
    whole = monotile.load_packed(Model(), str(tmp_path / "whole.safetensors"))
    check(whole, torch.from_numpy(weight))


def test_the_second_version_of_gptq_stores_zeros_as_they_are(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tensors, weight = written.gptq(N, K, 4, 32, stored=0)
    safetensors.save_file(rest() | written.named("up", tensors), tmp_path / "a.safetensors")
    config = {"quantization_config": {"checkpoint_format": "gptq_v2"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    check(monotile.load_packed(Model(), tmp_path), torch.from_numpy(weight))


def test_a_bias_of_noughts_is_left_out() -> None:
    tensors, _ = written.gptq(N, K, 4, 32)
    state = rest() | written.named("up", tensors) | {"up.bias": torch.zeros(N)}
    assert monotile.load_packed(Model(bias=False), state).get_submodule("up").bias is None
    state["up.bias"] = torch.ones(N)
    assert monotile.load_packed(Model(bias=False), state).get_submodule("up").bias is not None


def test_report() -> None:
    tensors, _ = written.gptq(N, K, 4, 32)
    model = loaded(tensors)
    found = model.packing
    assert isinstance(found, monotile.PackingReport)
    (row,) = found.rows
    assert row[:4] == ("up", "int4", (N, K), None)
    assert found.before - found.after == row.before - row.after == 2 * N * K - row.after
    assert str(found).splitlines()[2].split()[:5] == ["up", "int4", "48", "×", "128"]


def changed(name: str, tensor: Tensor | None) -> dict[str, Tensor]:
    """A GPTQ checkpoint with one tensor other, or without it."""
    state = rest() | written.named("up", written.gptq(N, K, 4, 32)[0])
    if tensor is None:
        del state[name]
    else:
        state[name] = tensor
    return state


WRONG: dict[str, tuple[str, Tensor | None, str]] = {
    "no scales": ("up.scales", None, r"up \(48 × 128\): scales is missing"),
    "no zeros": ("up.qzeros", None, r"up \(48 × 128\): qzeros is missing"),
    "no bias": ("up.bias", None, r"up \(48 × 128\): bias is missing"),
    "scales": ("up.scales", torch.ones(4, 40).half(), r"scales is \[4, 40\], and not \[4, 48\]"),
    "groups": ("up.scales", torch.ones(3, 48).half(), "3 groups do not divide its 128 inputs"),
    "dtype": ("up.scales", torch.ones(4, 48).int(), "scales is torch.int32, and not torch.float16 or"),
    "bits": ("up.qweight", torch.ones(12, 48).int(), "qweight has 12 rows: not those of 2, 4 or 8 bits for 128 inputs"),
    "index": ("up.g_idx", torch.zeros(128).int(), "g_idx does not make 4 groups of the same size"),
    "no such layer": ("left.qweight", torch.ones(16, 48).int(), "packs left, and the model has no such layer"),
    "no linear layer": ("words.qweight", torch.ones(16, 48).int(), "packs words, which is a Embedding"),
    "missing": ("down.weight", None, "the checkpoint lacks down.weight"),
    "extra": ("down.more", torch.ones(1), "the model has nothing of the name down.more"),
    "shape": ("down.weight", torch.ones(K, 9), r"down.weight is \[128, 9\] in the checkpoint and \[128, 48\] in the model"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_errors(case: str) -> None:
    """Nothing is changed by them."""
    name, tensor, message = WRONG[case]
    model = Model()
    with pytest.raises(InputError, match=message):
        monotile.load_packed(model, changed(name, tensor))
    assert isinstance(model.up, nn.Linear)


def test_errors_of_the_source(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no weights: give a file or folder"):
        monotile.load_packed(Model(), tmp_path)
    (tmp_path / "a.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"a\.safetensors cannot be read"):
        monotile.load_packed(Model(), tmp_path)
    with pytest.raises(InputError, match="no packed layers of GPTQ, AWQ or bitsandbytes"):
        monotile.load_packed(Model(), rest())


def test_errors_of_bitsandbytes() -> None:
    tensors, _ = written.nf4(N, K, "float16", False)
    state = "weight.quant_state.bitsandbytes__nf4"
    for blob, message in (
        (b"{", "is damaged"),
        (b"{}", "lacks blocksize, dtype, shape"),
        (b'{"blocksize": 64, "dtype": "float16", "shape": [9, 9]}', "its packed weight is 9 × 9"),
        (b'{"blocksize": 96, "dtype": "float16", "shape": [48, 128]}', "blocks of 96 do not divide"),
        (b'{"blocksize": 64, "dtype": "int8", "shape": [48, 128]}', "has the dtype int8"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            loaded(tensors | {state: torch.tensor(list(blob), dtype=torch.uint8)})


def test_buffers_that_no_checkpoint_has() -> None:
    with torch.device("meta"):
        model = Model()
        model.register_buffer("angles", torch.ones(3), persistent=False)
    tensors, _ = written.gptq(N, K, 4, 32)
    with pytest.raises(InputError, match="angles is on the meta device, and no checkpoint has it"):
        monotile.load_packed(model, rest() | written.named("up", tensors))


def test_a_zero_that_fits_no_byte() -> None:
    tensors, _ = written.gptq(N, K, 8, 32)
    tensors["qzeros"] = torch.full_like(tensors["qzeros"], -1)
    with pytest.raises(InputError, match="a zero of 256 fits no byte"):
        loaded(tensors)
