"""Models with packed layers: what is packed and what not, dtypes, state dicts, the report."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import monotile
from monotile.errors import InputError
from monotile.packing.layer import PackedLinear
from monotile.packing.report import PackingReport

FORMATS = ("int8", "int4", "int2", "int1", "nf4", "fp8", "fp8_e5m2", "mxfp4", "mxfp8", "2:4", "1:2", "3:32")  # fmt: skip
FLOAT8 = ()
# Those whose tensors have element types that the compiler takes.
COMPILED = tuple(f for f in FORMATS if f not in FLOAT8)


def sequence() -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 64, bias=False))
    return made.eval().requires_grad_(False)


def rows(count: int = 3) -> Tensor:
    return torch.randn(count, 128, generator=torch.Generator().manual_seed(1))


def layer(model: nn.Module, name: str) -> PackedLinear:
    found = model.get_submodule(name)
    assert isinstance(found, PackedLinear)
    return found


def report(model: nn.Module) -> PackingReport:
    found = model.packing
    assert isinstance(found, PackingReport)
    return found


@pytest.mark.parametrize("format", FORMATS)
def test_packed_model_is_the_model_with_decoded_weights(format: str) -> None:
    model, x = sequence(), rows()
    packed = monotile.pack(model, format)
    for name in ("0", "2"):
        dense = model.get_submodule(name)
        assert isinstance(dense, nn.Linear)
        new = layer(packed, name)
        assert (new.in_features, new.out_features) == (dense.in_features, dense.out_features)
        with torch.no_grad():
            dense.weight.copy_(new.weight)
    assert torch.equal(packed(x), model(x))


@pytest.mark.parametrize("format", FORMATS)
def test_state_dict(format: str) -> None:
    first = monotile.pack(sequence(), format)
    torch.manual_seed(1)
    second = monotile.pack(nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 64, bias=False)), format)  # fmt: skip
    assert not torch.equal(first(rows()), second(rows()))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(rows()), second(rows()))


@pytest.mark.parametrize("format", FORMATS)
def test_export(format: str) -> None:
    packed, x = monotile.pack(sequence(), format), rows()
    exported = torch.export.export(packed, (x,), strict=False)
    assert torch.equal(exported.module()(x), packed(x))


@pytest.mark.parametrize("format", COMPILED)
def test_compile(format: str) -> None:
    packed, x = monotile.pack(sequence(), format), rows()
    fast = monotile.compile(packed, (x,), target="cpu", options=monotile.Options(cache=False))
    torch.testing.assert_close(fast(x), packed(x))


def test_compile_with_zeros() -> None:
    packed, x = monotile.pack(sequence(), "int4", 32, symmetric=False), rows()
    fast = monotile.compile(packed, (x,), target="cpu", options=monotile.Options(cache=False))
    torch.testing.assert_close(fast(x), packed(x))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_change_of_dtype(format: str, dtype: torch.dtype) -> None:
    """Only what the layer computes in changes, not what the format has in a dtype of its own."""
    packed = monotile.pack(sequence(), format)
    before = {n: t.clone() for n, t in layer(packed, "0").packed.items()}
    packed.to(dtype)
    new = layer(packed, "0")
    assert new.dtype == new.weight.dtype == dtype
    assert packed(rows().to(dtype)).dtype == dtype
    for name, tensor in new.packed.items():
        follows = name in new.format.in_dtype
        assert tensor.dtype == (dtype if follows else before[name].dtype)
        if not follows:
            torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)
    assert packed.float()(rows()).dtype == torch.float32
    if not new.format.in_dtype:
        assert torch.equal(new.weight, layer(monotile.pack(sequence(), format), "0").weight)


def test_type_keeps_codes() -> None:
    packed = monotile.pack(sequence(), "int4").type(torch.float16)
    assert layer(packed, "0").packed["codes"].dtype == torch.uint8


def test_meta_and_back() -> None:
    packed = monotile.pack(sequence(), "nf4")
    state = copy.deepcopy(packed.state_dict())
    empty = copy.deepcopy(packed).to("meta")
    assert layer(empty, "0").packed["codes"].is_meta
    empty.to_empty(device="cpu").load_state_dict(state)
    assert torch.equal(empty(rows()), packed(rows()))


def test_the_model_is_left_as_it_was() -> None:
    model, x = sequence(), rows()
    expected = model(x)
    packed = monotile.pack(model)
    assert torch.equal(model(x), expected)
    assert not hasattr(model, "packing")
    shared = {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in packed.parameters()}  # fmt: skip
    assert not shared


def test_in_place() -> None:
    model = sequence()
    expected = monotile.pack(model)(rows())
    bias = model[0].bias
    assert monotile.pack(model, inplace=True) is model
    assert layer(model, "0").bias is bias
    assert torch.equal(model(rows()), expected)


def test_a_single_layer() -> None:
    packed = monotile.pack(nn.Linear(128, 8))
    assert isinstance(packed, PackedLinear)
    assert repr(packed) == (
        "PackedLinear(in_features=128, out_features=8, bias=True, format=int4, group=128)"
    )
    assert report(packed).rows[0].shape == (8, 128)


def test_a_layer_in_two_places_stays_one() -> None:
    shared = nn.Linear(128, 128)
    packed = monotile.pack(nn.Sequential(shared, nn.ReLU(), shared))
    assert packed.get_submodule("0") is packed.get_submodule("2")
    monotile.pack(model := nn.Sequential(shared, shared), inplace=True)
    assert isinstance(model[1], PackedLinear)
    assert model[0] is model[1]


def test_tied_weights_are_left_alone() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(50, 128)
            self.inner = nn.Linear(128, 128)
            self.head = nn.Linear(128, 50, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.inner(self.words(ids)))

    packed = monotile.pack(Tied())
    assert isinstance(packed.inner, PackedLinear)
    assert isinstance(packed.head, nn.Linear)
    assert packed.head.weight is packed.get_parameter("words.weight")
    assert report(packed).left == {
        "words.weight": "a parameter of Embedding, embeddings=True packs it",
        "head": "its weight is tied: it is also words.weight",
    }


@pytest.mark.parametrize(
    "where", [["2"], "2", ["[!0]"], lambda _, m: m.in_features == 256], ids=["list", "one", "pattern", "function"]
)  # fmt: skip
def test_where(where: Any) -> None:
    packed = monotile.pack(sequence(), where=where)
    assert isinstance(packed.get_submodule("0"), nn.Linear)
    assert isinstance(packed.get_submodule("2"), PackedLinear)
    assert report(packed).left == {"0": "left out by where"}


def test_what_would_change_its_meaning_is_left_alone() -> None:
    class Twice(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    hooked = nn.Linear(128, 128)
    hooked.register_forward_hook(lambda *_: None)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(128, 128))
    packed = monotile.pack(nn.Sequential(nn.Linear(128, 128), Twice(128, 128), hooked, normed))
    assert [type(m) for m in packed.children() if isinstance(m, PackedLinear)] == [PackedLinear]
    own = "has a forward or tensors of its own"
    left = report(packed).left
    assert left["1"] == f"Twice {own}"
    assert left["2"] == "it has hooks"
    assert left["3"] == f"ParametrizedLinear {own}"


def test_conv1d() -> None:
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    torch.manual_seed(0)
    model = nn.Sequential(pytorch_utils.Conv1D(96, 128)).requires_grad_(False)
    packed = monotile.pack(model, "int8")
    new = layer(packed, "0")
    assert (new.in_features, new.out_features, new.weight.shape) == (128, 96, (96, 128))
    torch.testing.assert_close(packed(rows()), model(rows()), rtol=1e-2, atol=1e-2)
    expected = functional.linear(rows(), new.weight, model.get_parameter("0.bias"))
    assert torch.equal(packed(rows()), expected)


def test_a_language_model() -> None:
    """GPT-2: Conv1D layers, and a head that is tied to the embedding."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=None,
        pad_token_id=0, use_cache=False,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval().requires_grad_(False)
    packed = monotile.pack(model, "int4", 32)
    assert len(report(packed).rows) == 8
    assert "lm_head" in report(packed).left
    ids = torch.arange(10).view(1, 10)
    fast = monotile.compile(packed, (ids,), target="cpu", options=monotile.Options(cache=False))
    torch.testing.assert_close(fast(ids).logits, packed(ids).logits, rtol=1e-4, atol=1e-4)


def test_attention_reads_the_weight() -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(128, 4, batch_first=True).eval().requires_grad_(False)
    packed = monotile.pack(model, "int8")
    assert isinstance(packed.out_proj, PackedLinear)
    x = torch.randn(2, 5, 128)
    torch.testing.assert_close(packed(x, x, x)[0], model(x, x, x)[0], rtol=1e-2, atol=1e-2)


def test_groups() -> None:
    for group, count in ((32, 4), (None, 1), ("default", 1)):
        packed = monotile.pack(sequence(), "int4", group)  # pyright: ignore[reportArgumentType]
        assert layer(packed, "0").packed["scale"].shape == (256, count)
    assert layer(monotile.pack(sequence(), "nf4"), "0").packed["absmax"].shape == (256, 2)


def test_report() -> None:
    found = report(monotile.pack(sequence(), where=["0"]))
    (row,) = found.rows
    assert row[:3] == ("0", "int4", (256, 128))
    assert row.error is not None
    assert 0.05 < row.error < 0.1
    assert (row.before, row.after) == (4 * 256 * 128, 256 * 128 // 2 + 4 * 256)
    assert (found.before, found.after) == (131072 + 1024 + 65536, row.after + 1024 + 65536)
    *_, last = lines = str(found).splitlines()
    assert any(line.split() == ["0", "int4", "256", "×", "128", f"{row.error:.2e}", "131.1", "17.4"] for line in lines)  # fmt: skip
    assert "not packed: 2: left out by where" in lines
    assert last == "the whole model: 197.6 kB, now 84.0 kB (42.5%)"


def test_large_layers_are_encoded_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = monotile.pack(sequence(), "int4")
    monkeypatch.setattr("monotile.packing.pack.CHUNK", 1000)
    parts = monotile.pack(sequence(), "int4")
    assert torch.equal(whole(rows()), parts(rows()))
    assert report(whole).rows[0].error == pytest.approx(report(parts).rows[0].error)


class TiedHead(nn.Module):
    """Two tables and a head, of which the first table is the head's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(96, 128, padding_idx=0), nn.Embedding(8, 128)
        self.inner, self.head = nn.Linear(128, 128), nn.Linear(128, 96, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        at = torch.arange(ids.shape[1], device=ids.device)
        return self.head(functional.gelu(self.inner(self.table(ids) + self.places(at))))


def tied_head() -> tuple[TiedHead, Tensor]:
    torch.manual_seed(0)
    return TiedHead().eval().requires_grad_(False), torch.randint(0, 96, (2, 5))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_embeddings_and_a_head_that_is_tied_to_one(format: str, inplace: bool) -> None:
    model, ids = tied_head()
    dense = copy.deepcopy(model)
    packed = monotile.pack(model, format, embeddings=True, inplace=inplace)
    assert packed.table.table is packed.head
    assert [r.name for r in report(packed).rows] == ["inner", "head, table", "places"]
    assert not report(packed).left
    assert report(packed).after == sum(b.nbytes for b in packed.buffers()) + packed.inner.bias.nbytes  # fmt: skip
    dense.table.weight.copy_(packed.head.weight)
    dense.places.weight.copy_(packed.places.weight)
    dense.inner.weight.copy_(packed.inner.weight)
    assert torch.equal(packed(ids), dense(ids))
    for module in (packed.to(torch.bfloat16), copy.deepcopy(packed)):
        assert module.table.table is module.head
        assert module(ids).dtype is torch.bfloat16


@pytest.mark.parametrize("format", COMPILED)
def test_compile_embeddings(format: str) -> None:
    model, ids = tied_head()
    packed = monotile.pack(model, format, embeddings=True)
    fast = monotile.compile(packed, (ids,), target="cpu", options=monotile.Options(cache=False))
    torch.testing.assert_close(fast(ids), packed(ids))
    again = monotile.pack(TiedHead().eval().requires_grad_(False), format, embeddings=True)
    again.load_state_dict(packed.state_dict())
    assert torch.equal(again(ids), packed(ids))


def test_one_graph_of_dynamo() -> None:
    model, ids = tied_head()
    packed = monotile.pack(model, "int4", embeddings=True)
    torch._dynamo.reset()
    whole = torch.compile(packed, backend="eager", fullgraph=True)
    assert torch.equal(whole(ids), packed(ids))


def test_tables_that_are_not_packed() -> None:
    model, _ = tied_head()
    assert "embeddings=True packs it" in report(monotile.pack(model, "int8")).left["places.weight"]
    left = report(monotile.pack(model, "int8", embeddings=True, where=["head", "inner"])).left
    assert left == {"table": "left out by where", "places": "left out by where", "head": "its weight is tied: it is also table.weight"}  # fmt: skip
    model.places.max_norm = 1.0
    assert "max_norm" in report(monotile.pack(model, "int8", embeddings=True)).left["places"]
    with pytest.raises(
        InputError,
        match=r"table .96 × 128. cannot be packed as 2:4x32: rows of 2:4x32 are encoded 32 together",
    ):
        monotile.pack(model, "2:4x32", embeddings=True, where=["table", "head"])
