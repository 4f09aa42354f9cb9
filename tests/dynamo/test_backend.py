"""torch.compile with the backend: the same answers as PyTorch, from as few kernels as there can be."""

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

import monotile
from monotile.dynamo import graph as module_of_graph
from monotile.dynamo.backend import backend, settings
from monotile.dynamo.graph import Graph

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
Call = Sequence[Any]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(5)  # a matrix of lower rank has more than one decomposition
    with torch.no_grad():
        yield


class Recorder:
    """The backend, and the graphs it made."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []

    def __call__(self, module: fx.GraphModule, example: Sequence[object]) -> Graph:
        self.graphs.append(backend(module, example, options={"cache": False}))
        return self.graphs[-1]

    @property
    def kernels(self) -> list[int]:
        return [g.kernels for g in self.graphs if g.called]

    @property
    def reasons(self) -> str:
        return "\n".join(r for g in self.graphs for r in g.reasons)


def cloned(call: Call) -> list[Any]:
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in call]


def check(model: Callable[..., Any], *calls: Call) -> Recorder:
    """Compares calls with PyTorch's, what they change included."""
    recorder, twin = Recorder(), copy.deepcopy(model)
    fast = torch.compile(model, backend=recorder)
    for call in calls:
        mine, theirs = cloned(call), cloned(call)
        torch.testing.assert_close(fast(*mine), twin(*theirs))
        torch.testing.assert_close(mine, theirs)
    if isinstance(model, nn.Module) and isinstance(twin, nn.Module):
        torch.testing.assert_close(list(model.buffers()), list(twin.buffers()))
    return recorder


class Model(nn.Module):
    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(3, 4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, *args: Any) -> Any:
        return self.f(self, *args)


MLP = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).eval()


def test_a_model_is_one_kernel_for_each_shape() -> None:
    made = check(MLP, [X], [X], *([torch.randn(n, 4)] for n in (5, 7, 9, 5)))
    assert set(made.kernels) == {1}
    assert not made.reasons


def test_by_name_without_an_import(tmp_path: Path) -> None:
    """As PyTorch finds the backend in an installed package."""
    info = tmp_path / "monotile-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: monotile\nVersion: 0\n")
    points = "[torch_dynamo_backends]\nmonotile = monotile.dynamo.backend:backend\n"
    (info / "entry_points.txt").write_text(points)
    assert 'monotile = "monotile.dynamo.backend:backend"' in Path("pyproject.toml").read_text()
    code = """
import sys, torch
model = torch.nn.Linear(4, 2).eval()
x = torch.randn(3, 4)
fast = torch.compile(model, backend="monotile", options={"workers": 1})
with torch.inference_mode():
    torch.testing.assert_close(fast(x), model(x))
print("monotile.targets.cpu.launch" in sys.modules)
"""
    path = f"{tmp_path}:{Path.cwd()}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "True", done.stderr


def test_kernels_round_what_is_not_supported() -> None:
    def forward(m: Model, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x).relu()
        m.state.add_(y)
        q = torch.geqrf(m.state.mT).a.mT  # here
        m.state.mul_(0.5)
        return m.b(q.abs()).softmax(-1) + y.sum() + m.state

    made = check(Model(forward).eval(), [X], [X], [X])
    assert made.kernels == [2]
    assert "geqrf" in made.reasons
    assert ".a.mT  # here" in made.reasons


def test_training_operators_run_in_pytorch() -> None:
    layers = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
    check(nn.Sequential(*layers).train(), [X], [X])
    made = check(nn.Sequential(nn.Linear(4, 4), nn.RReLU(0.2, 0.2), nn.Linear(4, 4)).train(), [X])
    assert made.kernels == [2]
    assert "rrelu" in made.reasons


def test_random_numbers_follow_the_seed_of_pytorch() -> None:
    def forward(m: Model, x: torch.Tensor) -> torch.Tensor:
        return m.a(x) + torch.randn_like(x) + F.dropout(x, 0.5, True)

    fast = torch.compile(Model(forward).eval(), backend="monotile")
    torch.manual_seed(3)
    first, second = fast(X), fast(X)
    torch.manual_seed(3)
    assert torch.equal(fast(X), first)
    assert not torch.equal(first, second)
    explained = check(nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0), nn.Linear(4, 4)).train(), [X])
    assert explained.kernels == [1]


def test_where_pytorch_breaks_the_graph() -> None:
    def forward(m: Model, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x).relu()
        torch._dynamo.graph_break()
        if y.sum() > 0:
            y = y + 1
        return m.b(y)

    made = check(Model(forward).eval(), [X], [X])
    assert len(made.kernels) == 3
    assert set(made.kernels) == {1}


def test_updates_in_place() -> None:
    def forward(m: Model, x: torch.Tensor) -> torch.Tensor:
        m.state.add_(x)
        m.count += 1
        return m.state * m.count

    assert check(Model(forward).eval(), [X], [X], [X]).kernels == [1]
    assert check(lambda x: x.add_(1) * 2, [X], [X]).kernels == [1]


class Growing(nn.Module):
    """Keeps all rows so far in an attribute, whose size Dynamo makes dynamic."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows = x if self.rows is None else torch.cat([self.rows, x])
        return self.rows.sum(0) + x


def test_attributes_of_dynamic_sizes() -> None:
    recorder, theirs = Recorder(), Growing()
    fast = torch.compile(Growing(), backend=recorder)
    for x in torch.randn(6, 2, 4):
        torch.testing.assert_close(fast(x), theirs(x))
    assert recorder.kernels == [1, 1, 1]
    assert not recorder.reasons


def views(x: torch.Tensor) -> Any:
    y = x.relu() + 1
    left, right = y.chunk(2, 1)
    return y, left, right, x.t(), x[0], (x + 1).view(-1)


def test_views_are_views() -> None:
    made = check(views, [X])
    assert made.kernels == [1]
    x = X.clone()
    y, left, _, t, row, _ = torch.compile(views, backend=made)(x)
    left.zero_()
    t.fill_(7)
    assert (y[:, :2] == 0).all()
    assert (x == 7).all()
    assert (row == 7).all()

    def changed(x: torch.Tensor) -> Any:
        y = x.add_(1)
        return y.view(-1), x * 2

    assert check(changed, [X], [X]).kernels == [1]


def test_what_is_checkpointed_is_part_of_the_kernel() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(lambda a, b: (a * 2).tanh() + b, x, x + 1, use_reentrant=False)
        return y.sum(0)

    assert check(f, [X]).kernels == [1]


def test_arguments_that_share_memory() -> None:
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    made = check(forward, [X, X + 1])
    assert made.kernels == [1]
    both, theirs = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    theirs.copy_(both)
    fast = torch.compile(forward, backend=made)
    torch.testing.assert_close(fast(both[0], both[0]), forward(theirs[0], theirs[0]))
    torch.testing.assert_close(both, theirs)


def test_modules_of_one_class_share_a_kernel() -> None:
    made = Recorder()
    layers = [nn.Linear(4, 4) for _ in range(3)]
    x = X
    for layer in layers:
        y = torch.compile(layer, backend=made)(x)
        torch.testing.assert_close(y, layer(x))
        x = y
    with torch.no_grad():
        layers[0].weight.mul_(2)
    fast = torch.compile(layers[0], backend=made)
    torch.testing.assert_close(fast(x), layers[0](x))
    layers[0].weight.data = torch.zeros(4, 4)
    torch.testing.assert_close(fast(x), layers[0](x))


def test_numbers_nothing_and_structures() -> None:
    def forward(d: dict[str, torch.Tensor], n: int, mask: torch.Tensor | None) -> Any:
        y = d["x"] * n
        return {"y": y if mask is None else y * mask, "n": n, "none": None}

    for n in (2, 3, 4):
        made = check(lambda x, n=n: forward({"x": x}, n, None), [X])
        assert made.kernels == [1]
    assert check(lambda x, n: x * n, [X, 2], [X, 3], [X, 4]).kernels[0] == 1
    assert set(check(lambda x, s: x * s, [X, 2.0], [X, 3.5], [X, 4.5]).kernels) == {1}
    check(lambda x: x[x > 0].sum() * 2, [X], [-X])


def test_a_part_under_autocast() -> None:
    """What is converted back behind it was in bfloat16."""

    def forward(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y, y.float().std(-1)

    assert check(forward, [X, torch.randn(4, 4)]).kernels == [1]


def test_the_fast_path_of_transformer_encoders() -> None:
    x, masked = torch.randn(2, 5, 8), torch.arange(5)[None] >= torch.tensor([[3], [5]])
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    assert check(lambda x: layer(x, src_key_padding_mask=masked), [x]).kernels == [1]
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, activation="gelu", batch_first=True, norm_first=True
    ).eval()
    assert check(layer, [x]).kernels == [1]
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    assert check(lambda x: attention(x, x, x), [x]).kernels == [1]


def test_gradients_are_pytorchs_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of_graph, "_warned", [])
    fast = torch.compile(MLP, backend=Recorder())
    with torch.enable_grad():
        with pytest.warns(UserWarning, match=r"torch\.no_grad"):
            fast(X).sum().backward()
        fast(X).sum().backward()
    assert MLP[0].weight.grad is not None
    MLP.zero_grad()


def test_options() -> None:
    found = settings({"target": "cpu", "workers": 2})
    assert (found.target, found.options) == ("cpu", monotile.Options(workers=2))
    with pytest.raises(monotile.InputError, match="unknown options fastmath"):
        settings({"fastmath": True})


def test_too_many_shapes_run_in_pytorch() -> None:
    graph = backend(fx.symbolic_trace(nn.ReLU()), [])
    with torch._dynamo.config.patch(recompile_limit=2):
        for n in (1, 2):
            graph(torch.randn(n))
        with pytest.warns(UserWarning, match="2 sets of shapes"):
            graph(torch.randn(3))
        x = torch.randn(4)
        torch.testing.assert_close(graph(x), x.relu())
