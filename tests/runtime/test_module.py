"""CompiledModule: calling, parameters, threads, refusals."""

import threading

import pytest
import torch

from monotile.errors import IndexOutOfRangeError, InputError, TargetError
from monotile.ir.dtype import DType
from monotile.ir.expr import Tensor
from monotile.ir.signature import AliasLeaf, OutputLeaf, Signature, TensorLeaf, ValueLeaf
from monotile.runtime.artifact import Artifact
from monotile.runtime.module import CompiledModule
from monotile.targets.cuda.backend import runs_on
from tests.runtime.artifacts import N, cpu_artifact, cuda_artifact, signature


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return cpu_artifact()


@pytest.fixture
def w() -> torch.Tensor:
    return torch.arange(N, dtype=torch.float32)


def test_a_call_gives_the_models_own_structure(artifact: Artifact, w: torch.Tensor) -> None:
    fast = CompiledModule(artifact, {"w": w})
    x = torch.randn(N)
    torch.testing.assert_close(fast(x), {"y": x * w + 0.5})
    assert fast.kernels == 1
    assert "monotile_run" in fast.source


def test_each_call_has_outputs_of_its_own(artifact: Artifact, w: torch.Tensor) -> None:
    fast = CompiledModule(artifact, {"w": w})
    first = fast(torch.ones(N))["y"]
    fast(torch.zeros(N))
    torch.testing.assert_close(first, w + 0.5)


def test_parameters_changed_in_place_are_seen(artifact: Artifact, w: torch.Tensor) -> None:
    parameter = torch.nn.Parameter(w)
    fast = CompiledModule(artifact, {"w": parameter})
    with torch.no_grad():
        parameter.mul_(2)
    torch.testing.assert_close(fast(torch.ones(N))["y"], 2 * torch.arange(N) + 0.5)


def test_memory_outlives_the_parameter(artifact: Artifact, w: torch.Tensor) -> None:
    parameter = torch.nn.Parameter(w.clone())
    fast = CompiledModule(artifact, {"w": parameter})
    parameter.data = torch.zeros(N)
    torch.testing.assert_close(fast(torch.ones(N))["y"], w + 0.5)
    fast.load_parameters({"w": parameter, "unread": torch.zeros(3)})
    torch.testing.assert_close(fast(torch.ones(N))["y"], torch.full((N,), 0.5))


def test_parameters_of_another_type_are_refused(artifact: Artifact, w: torch.Tensor) -> None:
    fast = CompiledModule(artifact, {"w": w})
    with pytest.raises(InputError, match=r"parameter w: expected \[8\] torch.float32, got \[3\]"):
        fast.load_parameters({"w": torch.zeros(3)})
    with pytest.raises(InputError, match="parameter w is on meta"):
        CompiledModule(artifact, {"w": w.to("meta")})


def test_any_layout_of_inputs_and_parameters(artifact: Artifact, w: torch.Tensor) -> None:
    strided = torch.stack([w, -w], dim=1)[:, 0]
    fast = CompiledModule(artifact, {"w": strided})
    for x in (
        torch.randn(2 * N)[::2],
        torch.randn(N + 1)[1:],  # not aligned
        torch.ones(()).expand(N),
        torch._neg_view(torch.randn(N)),
        torch.nn.Parameter(torch.randn(N), requires_grad=False),
    ):
        torch.testing.assert_close(fast(x)["y"], x * w + 0.5)


def test_index_checks_become_errors(artifact: Artifact, w: torch.Tensor) -> None:
    with pytest.raises(IndexOutOfRangeError, match="index out of range for table of extent 4"):
        CompiledModule(artifact, {"w": w})(torch.full((N,), 99.0))


def test_threads_may_call_at_once(artifact: Artifact, w: torch.Tensor) -> None:
    fast = CompiledModule(artifact, {"w": w})
    wrong: list[int] = []

    def work(k: int) -> None:
        x = torch.full((N,), float(k))
        for _ in range(300):
            if not torch.equal(fast(x)["y"], x * w + 0.5):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            torch.zeros(3),
            r"args\[0\]: expected \[8\] float32 on cpu, got \[3\] float32 on cpu: shapes",
        ),
        (
            torch.zeros(N).double(),
            r"got \[8\] float64 on cpu: convert it with \.to\(torch\.float32\)",
        ),
        (torch.zeros(N, device="meta"), r'on meta: move it with \.to\("cpu"\)'),
        (3, r"got int: give a torch\.Tensor"),
        (torch.zeros(N).to_sparse(), r"layout torch\.sparse_coo: use \.to_dense"),
        (torch.zeros(N, requires_grad=True), r"requires a gradient.*torch\.no_grad"),
    ],
)
def test_arguments_that_do_not_fit(
    artifact: Artifact, w: torch.Tensor, given: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        CompiledModule(artifact, {"w": w})(given)


def test_gradients_are_no_matter_under_no_grad(artifact: Artifact, w: torch.Tensor) -> None:
    with torch.no_grad():
        y = CompiledModule(artifact, {"w": w})(torch.ones(N, requires_grad=True))["y"]
    assert not y.requires_grad


def test_another_structure_is_refused(artifact: Artifact, w: torch.Tensor) -> None:
    fast = CompiledModule(artifact, {"w": w})
    x = torch.zeros(N)
    with pytest.raises(InputError, match=r"expected \(\*\), got \(x=\*\)"):
        fast(x=x)
    with pytest.raises(InputError, match=r"expected \(\*\), got \(\*, \*\)"):
        fast(x, x)
    with pytest.raises(InputError, match=r"expected \(\*\), got \(\*, \[\*, \(\*,\)\]\)"):
        fast(x, [x, (x,)])


def test_nested_arguments_and_keywords_in_any_order(w: torch.Tensor) -> None:
    sig = signature((), {"b": [0], "a": ()})
    fast = CompiledModule(cpu_artifact(sig), {"w": w})
    x = torch.ones(N)
    torch.testing.assert_close(fast(a=(), b=[x])["y"], w + 0.5)


def test_compiled_in_values_aliases_and_constant_results(w: torch.Tensor) -> None:
    base = signature((0, 0))
    x = TensorLeaf(Tensor("x", (N,), DType.F32))
    tree = signature({"y": 0, "x": 0, "n": 0}).input_tree.children()[0]
    sig = Signature(
        (x, ValueLeaf(2)),
        ("args[0]", "args[1]"),
        base.input_tree,
        (OutputLeaf(0), AliasLeaf(0), ValueLeaf(None)),
        tree,
    )
    fast = CompiledModule(cpu_artifact(sig), {"w": w})
    given = torch.ones(N)
    found = fast(given, 2)
    assert found["x"] is given
    assert found["n"] is None
    for other in (3, True, 2.0):
        with pytest.raises(InputError, match=r"args\[1\] was 2 when the model was compiled"):
            fast(given, other)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_a_cuda_artifact_can_be_looked_at(w: torch.Tensor) -> None:
    fast = CompiledModule(cuda_artifact(), {"w": w})
    assert (fast.cubin, fast.ptx) == (b"cubin", "ptx")
    with pytest.raises(
        TargetError, match="compiled for cuda:sm_90a, which this machine cannot run"
    ):
        fast(torch.zeros(N))
    with pytest.raises(TargetError):
        fast.load_parameters({})


def test_which_gpu_runs_a_cubin() -> None:
    assert runs_on("sm_80", (8, 0))
    assert runs_on("sm_80", (8, 9))
    assert not runs_on("sm_86", (8, 0))
    assert not runs_on("sm_80", (9, 0))
    assert runs_on("sm_90a", (9, 0))
    assert not runs_on("sm_90a", (10, 0))
