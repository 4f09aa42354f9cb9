"""Models as torchao's `quantize_` leaves them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import monotile
from monotile.analysis.codes import codes_in
from monotile.analysis.contraction import factors
from monotile.analysis.encoding import coded_sides, encoded
from monotile.errors import CaptureError
from monotile.frontends.torch.capture import capture
from monotile.ir.program import Compute, Program, statements
from monotile.kernels.gemv.method import GemvMma
from monotile.pipeline import for_target, transform
from monotile.plan.walk import stages_in
from monotile.targets.detect import detect_target
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.codegen.test_gemv_emulated import SMALL
from tests.conftest import wide

torchao = pytest.importorskip("torchao", reason="torchao is not installed")
quantization = pytest.importorskip("torchao.quantization")
PerAxis, PerGroup, PerRow, PerTensor = (
    getattr(quantization, n) for n in ("PerAxis", "PerGroup", "PerRow", "PerTensor")
)
Config = Callable[[], Any]
ASYMMETRIC = quantization.MappingType.ASYMMETRIC

WEIGHTS: dict[str, Config] = {
    "int8": lambda: quantization.Int8WeightOnlyConfig(),
    "int8 groups": lambda: quantization.Int8WeightOnlyConfig(granularity=PerGroup(32)),
    "float8": lambda: quantization.Float8WeightOnlyConfig(),
    "int2": lambda: quantization.IntxWeightOnlyConfig(torch.int2, PerGroup(32)),
    "int4": lambda: quantization.IntxWeightOnlyConfig(torch.int4, PerGroup(32)),
    "int4 rows": lambda: quantization.IntxWeightOnlyConfig(torch.int4, PerAxis(0)),
    "int4 dynamic": lambda: quantization.Int8DynamicActivationIntxWeightConfig(
        torch.int4, PerGroup(32)
    ),
    "int4 dynamic, zeros": lambda: quantization.Int8DynamicActivationIntxWeightConfig(
        torch.int4, PerGroup(32), weight_mapping_type=ASYMMETRIC
    ),
}
DYNAMIC: dict[str, Config] = {
    "int8": lambda: quantization.Int8DynamicActivationInt8WeightConfig(),
    "int8 tensor": lambda: quantization.Int8DynamicActivationInt8WeightConfig(
        granularity=PerTensor()
    ),
    "int8 zeros": lambda: quantization.Int8DynamicActivationInt8WeightConfig(
        act_mapping_type=ASYMMETRIC
    ),
    "float8": lambda: quantization.Float8DynamicActivationFloat8WeightConfig(
        granularity=PerTensor()
    ),
    "float8 rows": lambda: quantization.Float8DynamicActivationFloat8WeightConfig(
        granularity=PerRow()
    ),
}


def made(config: Config, dtype: torch.dtype, *, deep: bool = True) -> tuple[nn.Module, Tensor]:
    """deep: of two layers. Where activations are quantised, a rounding before may change a code, so that one layer tests more."""
    layers = nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)
    model = nn.Sequential(*layers[: 3 if deep else 2]).eval().to(dtype)
    quantization.quantize_(model, config())
    return model, torch.randn(3, 128).to(dtype)


def close(found: Tensor, right: Tensor) -> None:
    by = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[right.dtype]
    assert found.dtype is right.dtype
    torch.testing.assert_close(found, right, rtol=by, atol=by)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, torch.float32) for kind in WEIGHTS]
    + [(kind, torch.bfloat16) for kind in ("int8", "float8", "int4 dynamic, zeros")]
    + [wide(kind, torch.bfloat16) for kind in ("int8 groups", "int2", "int4", "int4 rows", "int4 dynamic")]
    + [wide(kind, torch.float16) for kind in WEIGHTS],
    ids=str,
)  # fmt: skip
def test_weights_alone(kind: str, dtype: torch.dtype) -> None:
    deep = "dynamic" not in kind
    model, x = made(WEIGHTS[kind], dtype, deep=deep)
    parameters = dict(model.named_parameters())
    fast = monotile.compile(model, (x,), target="cpu")
    close(fast(x), model(x))
    assert all(p is parameters[n] for n, p in model.named_parameters())
    inner = {f"{k}.weight.{n}" for k in ("0", "2")[: 1 + deep] for n in ("qdata", "scale")}
    assert inner <= set(fast.plan.weights)


@pytest.fixture
def any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchao lets 8-bit floats be made dynamically on some GPUs alone; they run everywhere."""
    monkeypatch.setattr(quantization.quant_api, "_check_hardware_support", lambda *_: None)


@pytest.mark.usefixtures("any_machine")
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, torch.bfloat16) for kind in DYNAMIC]
    + [(kind, torch.float32) for kind in ("int8", "float8")]  # of rows for bfloat16 alone
    + [wide(kind, torch.float32) for kind in ("int8 tensor", "int8 zeros")],
    ids=str,
)
def test_dynamic_activations(kind: str, dtype: torch.dtype) -> None:
    model, x = made(DYNAMIC[kind], dtype, deep=False)
    close(monotile.compile(model, (x,), target="cpu")(x), model(x))


@pytest.mark.usefixtures("any_machine")
@pytest.mark.parametrize("kind", ["int8", wide("int8 tensor"), "float8", "float8 rows"])
def test_dynamic_activations_for_a_gpu(kind: str) -> None:
    model, x = made(DYNAMIC[kind], torch.bfloat16)
    assert monotile.compile(model, (x,), target="cuda:sm_90a").cubin


@pytest.mark.parametrize("kind", WEIGHTS)
def test_products_read_codes(kind: str) -> None:
    """No weight is ever written, and what decodes it is recognised."""
    model, x = made(WEIGHTS[kind], torch.bfloat16)
    found = capture(model, (x[:1],))
    options = monotile.Options()
    program, _ = transform(found.program, found.constants, options)
    for target in ("cpu", "cuda:sm_90a"):
        products_read_codes(for_target(program, detect_target(target, options))[0])


def products_read_codes(program: Program) -> None:
    computed = [s for s in statements(program.body) if isinstance(s, Compute)]
    assert max(math.prod(s.out.shape) for s in computed) <= 256
    codes = [
        codes_in(factor, c.reduce[-1], how)
        for c in computed
        for factor in (factors(c)[k] for k in coded_sides(c))
        if (how := encoded(factor, c.reduce[-1]))
    ]
    assert len(codes) == 2
    assert None not in codes


@pytest.mark.parametrize("kind", ["int8", wide("float8"), "int4 dynamic"])
def test_other_ways_in(kind: str) -> None:
    model, x = made(WEIGHTS[kind], torch.float32, deep=False)
    right = model(x)
    with torch.no_grad():
        close(monotile.compile(torch.export.export(model, (x,)), target="cpu")(x), right)
    assert monotile.explain(model, (x,), target="cpu").kernels == 1


def test_other_parameters_of_the_same_form() -> None:
    model, x = made(WEIGHTS["int8"], torch.float32)
    another, _ = made(WEIGHTS["int8"], torch.float32)
    fast = monotile.compile(model, (x,), target="cpu")
    fast.load_parameters(another.state_dict())
    close(fast(x), another(x))


def test_dynamic_sizes() -> None:
    model, x = made(WEIGHTS["int4 dynamic"], torch.float32, deep=False)
    rows = torch.export.Dim("rows", min=1, max=8)
    fast = monotile.compile(model, (x,), target="cpu", dynamic_shapes=({0: rows},))
    for n in (1, 5, 8):
        x = torch.randn(n, 128)
        close(fast(x), model(x))


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("kind", ["int8", wide("int8 groups"), "float8"])
def test_few_rows_stream(kind: str) -> None:
    model = nn.Sequential(nn.Linear(1024, 256)).eval().half()
    quantization.quantize_(model, WEIGHTS[kind]())
    x = torch.randn(1, 1024).half()
    fast = Emulated(model, (x,), 2, target=SMALL)
    steps = [s.method for stage in stages_in(fast.plan.body) for s in stage.steps]
    assert any(isinstance(m, GemvMma) for m in steps)
    torch.testing.assert_close(fast(x)[0], model(x), rtol=5e-3, atol=5e-3)


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 36, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)).flatten(1))


@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs_of_pt2e(dynamic: bool) -> None:
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    x86 = pytest.importorskip("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
    x = torch.randn(2, 3, 6, 6)
    prepared = pt2e.prepare_pt2e(torch.export.export(Convolved().eval(), (x,)).module(), quantizer)
    prepared(x)
    model = pt2e.convert_pt2e(prepared)
    fast = monotile.compile(model, (x,), target="cpu")
    assert {"_frozen_param0", "_frozen_param1"} <= set(fast.plan.weights)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=0, atol=2e-2)  # a code may differ by one


def test_int4_of_tensor_cores() -> None:
    """The layout that torchao packs on a GPU, compiled for any target; a model on the CPU that has no such operator."""
    n, k, group = 64, 1024, 32
    packed = torch.randint(-(2**31), 2**31 - 1, (n // 8, k // 128, 32, 4)).int()
    pairs = torch.randn(k // group, n, 2).bfloat16()
    held = quantization.Int4TilePackedTo4dTensor(packed, pairs, [1, group], torch.Size((n, k)))
    model, x = nn.Linear(k, n).eval().bfloat16(), torch.randn(3, k).bfloat16()
    model.weight = nn.Parameter(held, requires_grad=False)
    bias, plain = model.bias, torch.ops.aten._weight_int4pack_mm

    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return plain(x, packed, group, pairs) + bias

    right = monotile.compile(Plain(), (x,), target="cpu")(x)
    assert torch.equal(monotile.compile(model, (x,), target="cpu")(x), right)


@pytest.mark.parametrize("kind", ["Int4PlainInt32Tensor", "Int4PreshuffledTensor"])
def test_layouts_without_an_operator_here(kind: str) -> None:
    n, k = 64, 256
    scale = torch.rand(k // 32, n).bfloat16()
    model, x = nn.Sequential(nn.Linear(k, n)).eval().bfloat16(), torch.randn(3, k).bfloat16()
    form = getattr(quantization, kind)
    codes = torch.zeros(n, k // 2, dtype=torch.int8)
    order = (codes, scale, scale, [1, 32], torch.Size((n, k)))
    if kind == "Int4PreshuffledTensor":
        order = (codes, scale, [1, 32], torch.Size((n, k)), scale, None)
    model[0].weight = nn.Parameter(form(*order), requires_grad=False)
    with pytest.raises(CaptureError, match=rf"0\.weight is of class {kind}: .*monotile\.pack"):
        monotile.compile(model, (x,), target="cpu")
