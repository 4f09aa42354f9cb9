"""Parts of a model under autocast or in another gradient mode, without PyTorch's second trace where that can be."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram

import monotile
from monotile.errors import UnsupportedOperatorError
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.frontends.torch.rewriting.autocast import (
    DEVICES,
    NOTHING,
    Conversion,
    Conversions,
    within,
)
from monotile.frontends.torch.rewriting.contexts import without_contexts
from monotile.ir.program import Compute
from tests.frontend.against import check

T = torch.Tensor
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
aten = torch.ops.aten
autocast = torch.autocast
HALF = pytest.mark.parametrize("dtype", [BF16, F16], ids=str)


class Net(nn.Module):
    count: torch.Tensor

    def __init__(self, run: Callable[["Net", T], Any]) -> None:
        super().__init__()
        self.run = run
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.extra: nn.Module = nn.Identity()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: T) -> Any:
        return self.run(self, x)


def net(run: Callable[[Net, T], Any]) -> Net:
    torch.manual_seed(0)
    return Net(run).eval().requires_grad_(False)


def x_() -> T:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second trace."""

    def traced(*_: object) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr(ExportedProgram, "run_decompositions", traced)


def types_of(exported: ExportedProgram) -> list[tuple[str, torch.dtype]]:
    """Of all operators, but views and marks."""
    found: list[tuple[str, torch.dtype]] = []
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, T) and "assert" not in node.name:
            name = str(node.target).split(".")[1].removeprefix("_").removesuffix("_copy")
            found.append((name, value.dtype))
    return sorted(found, key=str)


def nested(m: Net, x: T) -> Any:
    with autocast("cpu", BF16):
        y = m.linear(x)
        with autocast("cpu", enabled=False):
            z = y.float() @ x.T
            with autocast("cpu", F16):
                u = m.linear(z @ x)
        with torch.no_grad(), autocast("cpu", F16):
            v = m.conv(y[None]) + m.norm(x)
        w = (y @ x.T).softmax(-1)
    return y, z + 1, u, v, w


def shared(m: Net, x: T) -> Any:
    """One value is read by several operators, and is a result of the region twice."""
    with autocast("cpu", BF16):
        y = x.exp()
        a, b = torch.bmm(y[None], y.T[None]), torch.cat([y, m.linear(y)])
        c = nn.functional.scaled_dot_product_attention(y[None, None], y[None, None], y[None, None])
    return {"a": a, "b": b, "c": c, "y": y, "z": y}


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("run", [nested, shared])
def test_regions(run: Callable[[Net, T], Any]) -> None:
    check(net(run), (x_(),), tolerance=3e-2)


@pytest.mark.parametrize("run", [nested, shared])
def test_conversions_are_pytorchs(run: Callable[[Net, T], Any]) -> None:
    model, x = net(run), x_()
    traced = torch.export.export(model, (x,), strict=False)
    ours = without_contexts(traced)
    assert not any("wrap_with" in str(n.target) for n in ours.graph.nodes)
    keep = {op: d for op, d in torch.export.default_decompositions().items() if op is aten.to.dtype}
    assert types_of(ours.run_decompositions(keep)) == types_of(traced.run_decompositions(keep))


@pytest.mark.usefixtures("once")
def test_another_device() -> None:
    """A region for a device on which the tensors are not changes nothing, nor ends what holds for theirs."""

    def run(m: Net, x: T) -> Any:
        with autocast("cpu", BF16), autocast("cuda", enabled=False):
            y = m.linear(x)
        with autocast("cuda", enabled=False):
            return y, m.linear(x)

    check(net(run), (x_(),))


@pytest.mark.usefixtures("once")
def test_updates_and_choices_within() -> None:
    """A region is no wall: updates in place, the model's states and an `if` on a tensor are as elsewhere."""

    def run(m: Net, x: T) -> Any:
        with torch.no_grad(), autocast("cpu", BF16):
            y = m.linear(x)
            y += 1
            y[1:3].mul_(2)
            if y.sum() > 0:
                y = m.norm(y)
        return y.relu_()

    check(net(run), (x_(),))
    check(net(run), (-9 * x_(),))


def test_states_within() -> None:
    def run(m: Net, x: T) -> Any:
        with autocast("cpu", BF16):
            m.count.add_(1)
            return m.linear(x) * m.count

    model, x = net(run), x_()
    fast = monotile.compile(model, (x,), target="cpu")
    fast(x)
    found = fast(x)
    model.count.fill_(1)
    torch.testing.assert_close(found, model(x), rtol=3e-2, atol=3e-2)


def test_composite() -> None:
    """Operators that consist of others, of which some are converted, become those, unless all are given lower types."""

    def run(m: Net, x: T) -> Any:
        with autocast("cpu", BF16):
            y = torch.einsum("ij,kj->ik", x, x)
            z = nn.functional.cosine_similarity(x, x + 1)
            return y, z, m.linear(x), nn.functional.rms_norm(x.bfloat16(), [8])

    check(net(run), (x_(),))


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent(layer: Callable[[int, int], nn.Module]) -> None:
    def run(m: Net, x: T) -> Any:
        with autocast("cpu", BF16):
            return m.extra(x[None])

    model = net(run)
    model.extra = layer(8, 8).requires_grad_(False)
    found = monotile.compile(model, (x_(),), target="cpu")(x_())[0]
    torch.testing.assert_close(found.float(), run(model, x_())[0].float(), rtol=3e-2, atol=3e-2)


@pytest.mark.usefixtures("once")
@HALF
def test_around_the_compilation(dtype: torch.dtype) -> None:
    """A model is compiled as it is called: under the autocast of the caller, but for where it says otherwise."""

    def run(m: Net, x: T) -> Any:
        y = m.linear(x)
        with autocast("cpu", enabled=False):
            z = m.linear(x)
        return y, z, m.norm(y)

    with autocast("cpu", dtype):
        captured = check(net(run), (x_(),))
    made = [s.out.name for s in captured.program.body if isinstance(s, Compute)]
    assert len([name for name in made if name.startswith("_to_copy")]) == 3


def test_around_what_pytorch_traces() -> None:
    def run(m: Net, x: T) -> Any:
        y = torch.cond(x.sum() > 0, lambda x: m.linear(x), lambda x: m.linear(x + 1), (x,))
        with autocast("cpu", enabled=False):
            return y, m.linear(x)

    with autocast("cpu", BF16):
        check(net(run), (x_(),))
        exported = torch.export.export(net(run), (x_(),), strict=False)
    with autocast("cpu", BF16):
        assert capture(exported).program.outputs[0].dtype.value == "bfloat16"


@pytest.mark.usefixtures("once")
def test_sizes() -> None:
    def run(m: Net, x: T) -> Any:
        with autocast("cpu", BF16):
            return m.linear(x).softmax(0)

    n = torch.export.Dim("n", min=2, max=9)
    model = net(run)
    fast = monotile.compile(model, (x_(),), target="cpu", dynamic_shapes=({0: n},))
    torch.testing.assert_close(fast(x_()[:3]), model(x_()[:3]), rtol=3e-2, atol=3e-2)


def test_the_line_of_a_region() -> None:
    def run(m: Net, x: T) -> Any:
        with autocast("cpu", BF16):
            return torch.geqrf(m.linear(x).float()).tau

    with pytest.raises(UnsupportedOperatorError, match=r"test_autocast.py:\d+, in forward"):
        capture(net(run), (x_(),))


def test_the_modes_of_others_stay() -> None:
    with autocast("cpu", F16):
        with within({"cuda": BF16}):
            assert [torch.is_autocast_enabled(d) for d in DEVICES] == [False, True]
            assert torch.get_autocast_dtype("cuda") is BF16
        assert [torch.is_autocast_enabled(d) for d in DEVICES] == [True, False]
        assert torch.get_autocast_dtype("cpu") is F16
        before = export(net(lambda m, x: m.linear(x)), (x_(),))
        assert torch.get_autocast_dtype("cpu") is F16
    assert F16 in [t for _, t in types_of(before)]


Operand = tuple[torch.dtype, Sequence[int]]
A, H = (F32, (4, 4)), (F16, (4, 4))
HEADS = (F32, (1, 2, 4, 8))
ONE = Conversion(((0, F32),))
TO_F32 = Conversion((), (("dtype", F32),))
CUDA: dict[str, tuple[Any, tuple[Any, ...], Conversion]] = {
    "linear": (aten.linear.default, (A, A), Conversion(((1, F16), (0, F16)))),
    "of half": (aten.linear.default, (H, H), NOTHING),
    "mixed": (aten.matmul.default, (A, H), Conversion(((0, F16),))),
    "softmax": (aten.softmax.int, (H, -1), TO_F32),
    "sum": (aten.sum.dim_IntList, (H, [1]), TO_F32),
    "layer_norm": (aten.layer_norm.default, (H, [4]), ONE),
    "exp": (aten.exp.default, (H,), ONE),
    "gelu": (aten.gelu.default, (H,), NOTHING),
    "to": (aten.to.dtype, (A, F16), NOTHING),
    "view": (aten.reshape.default, (A, [16]), NOTHING),
    "attention": (aten.scaled_dot_product_attention.default, (HEADS, HEADS, HEADS), Conversion(((2, F16), (1, F16), (0, F16)))),
}  # fmt: skip


@pytest.mark.parametrize("name", CUDA)
def test_conversions_of_cuda(name: str) -> None:
    """Which are others than those of the CPU; no GPU is needed to find them."""
    op, args, want = CUDA[name]
    graph, mode = fx.Graph(), FakeTensorMode()

    def operand(x: Any) -> Any:
        if not isinstance(x, tuple):
            return x
        node = graph.placeholder("x")
        with mode:
            node.meta["val"] = torch.empty(x[1], dtype=x[0], device="cuda")
        return node

    node = graph.call_function(op, tuple(map(operand, args)))
    assert Conversions().of(node, {"cuda": F16}) == want
    assert Conversions().of(node, {"cpu": F16}) == NOTHING
