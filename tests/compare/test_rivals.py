"""The rivals: which are available, and that OpenVINO and ONNX Runtime run what PyTorch runs, or say why not."""

import importlib.util
from typing import Any

import pytest
import torch

from monotile.compare import rivals
from monotile.compare.forms import FORMS
from monotile.compare.jobs import Absent, Job, Network, first_line
from monotile.compare.rivals import RIVALS, missing
from monotile.compare.tensors import OfTensors, exported, inputs_of, narrowest, results_of
from monotile.errors import TargetError
from monotile.runtime.accuracy import error, tensors
from monotile.runtime.reference import Call

NETWORK = Network("some", "some:make")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


class Several(torch.nn.Module):
    """Nested arguments and results, some of which are no tensors, an integer one, a result twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.words = torch.nn.Linear(8, 8), torch.nn.Embedding(10, 8)

    def forward(
        self, x: torch.Tensor, *, ids: torch.Tensor, masks: dict[str, torch.Tensor], scale: float
    ) -> dict[str, Any]:
        y = (self.linear(x) + self.words(ids)) * scale
        return {"y": y, "none": None, "more": [ids + 1, masks["m"].logical_not(), y], "number": 3}


class Counts(torch.nn.Module):
    """Changes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.calls, torch.Tensor)
        self.calls.add_(1)
        return x + self.calls


class Changes(torch.nn.Module):
    """Changes its argument."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 2


class Picks(torch.nn.Module):
    """Has a result whose size its data decide."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]


def several(dtype: torch.dtype) -> tuple[torch.nn.Module, Call]:
    x = torch.randn(8, 4).to(dtype).t()  # not dense
    rest = {"ids": torch.tensor([1, 9, 0, 3]), "masks": {"m": torch.tensor([True, False])}}
    return Several().eval().to(dtype), ((x,), {**rest, "scale": 2.0})


def test_a_network_of_tensors() -> None:
    model, call = several(torch.float16)
    inputs = inputs_of(call)
    assert [x.dtype for x in inputs] == [torch.float16, torch.int64, torch.bool]
    assert all(x.is_contiguous() for x in inputs)
    network = OfTensors(model, call)
    right = tensors(model(*call[0], **call[1]))
    assert error(network(*inputs), right) == 0
    found = results_of(exported(network, inputs), CPU)
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in right]
    assert narrowest(model) == torch.float16
    assert narrowest(model.float()) == torch.float32


@pytest.mark.parametrize(
    ("model", "what"), [(Counts(), "each call changes calls"), (Changes(), "each call changes")]
)
def test_a_network_that_changes_something_is_refused(model: torch.nn.Module, what: str) -> None:
    call: Call = ((torch.zeros(3),), {})
    with pytest.raises(Absent, match=what):
        exported(OfTensors(model, call), inputs_of(call))


def test_who_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnx" else name)
    assert missing(Job(NETWORK, "onnxruntime", target="cpu")) == "not installed: onnx"
    assert missing(Job(NETWORK, "openvino", target="cpu")) is None
    assert missing(Job(NETWORK, "openvino", target="cuda:sm_90a")) == "it runs on cpu alone"
    assert missing(Job(NETWORK, "xla", target="cpu")) == "there is no JAX version of this network"
    for way in ("monotile", "profile", "eager", "compile", "max-autotune"):
        assert missing(Job(NETWORK, way, target="cpu")) is None
    with pytest.raises(TargetError):
        missing(Job(NETWORK, "eager", target="tpu"))


def test_every_entry() -> None:
    assert list(RIVALS) == ["max-autotune", "compile", "xla", "openvino", "onnxruntime", "eager"]
    for rival in RIVALS.values():
        assert set(rival.forms) <= set(FORMS)
        assert set(rival.targets) <= {"cpu", "cuda"}
    assert rivals.RIVALS["eager"].versions == {}


def test_words_of_a_failure() -> None:
    assert first_line(ValueError("\n one \n two")) == "ValueError: one"
    assert first_line(ValueError()) == "ValueError: "
    long = "Exception from src/a.cpp:1:\nCheck 'false' failed\nSummary:\n-- No rule for aten.f\n"
    assert first_line(RuntimeError(long)) == "RuntimeError: -- No rule for aten.f"


@pytest.fixture(params=["openvino", "onnxruntime"])
def other(request: pytest.FixtureRequest) -> rivals.Rival:
    """A rival of `monotile[rivals]`, if it is installed."""
    for package in RIVALS[request.param].packages:
        pytest.importorskip(package)
    return RIVALS[request.param]


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_another_compiler_runs_it(other: rivals.Rival, dtype: torch.dtype) -> None:
    model, call = several(dtype)
    run = other.make(NETWORK, model, call, CPU)
    right = tensors(model(*call[0], **call[1]))
    for _ in range(2):
        found = run()
        assert [x.dtype for x in found] == [x.dtype for x in right]
        assert error(found, right) < (1e-6 if dtype == torch.float32 else 1e-2)
    assert set(other.versions) == set(other.packages)
    assert other.clock(run, CPU)(0.01).call > 0


@pytest.mark.filterwarnings("ignore")
def test_another_compiler_runs_recurrent_layers(other: rivals.Rival) -> None:
    model = torch.nn.LSTM(8, 8, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    assert error(other.make(NETWORK, model, ((x,), {}), CPU)(), model(x)) < 1e-5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "why"), [(Counts(), "each call changes calls"), (Picks(), "it cannot be converted")]
)
def test_another_compiler_says_why_not(
    other: rivals.Rival, model: torch.nn.Module, why: str
) -> None:
    with pytest.raises(Absent, match=why):
        other.make(NETWORK, model, ((torch.randn(3),), {}), CPU)
