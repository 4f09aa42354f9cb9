"""explain: how many kernels, and why."""

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import monotile
from monotile.cli.main import main
from monotile.config import Options

OPTIONS = Options(cache=False)
X = torch.randn(3, 4)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x).relu()
        torch._dynamo.graph_break()
        q = torch.geqrf(y.mT).a.mT  # the line
        return self.a(q)


def test_one_kernel() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    for given in (model, torch.export.export(model, (X,))):
        found = monotile.explain(given, (X,), target="cpu", options=OPTIONS)
        assert found.whole
        assert found.kernels == 1
        assert str(found) == "monotile.compile: 1 kernel\ntorch.compile: 1 kernel"


def test_why_it_is_not_one() -> None:
    found = monotile.explain(Model().eval(), (X,), options=OPTIONS)
    assert not found.whole
    assert found.kernels == 2
    assert "geqrf" in found.obstacle
    text = str(found)
    assert text.startswith("monotile.compile: refused")
    assert "torch.compile: 2 kernels, and PyTorch for the rest" in text
    assert "graph_break()" in text
    assert "# the line" in text
    assert "test_explain.py:" in text


def test_what_pytorchs_compiler_leaves_alone() -> None:
    found = monotile.explain(nn.LSTM(4, 4).eval(), (X,), options=OPTIONS)
    assert (found.obstacle, found.kernels) == ("", 0)
    assert any("LSTM" in words for words in found.breaks)


def test_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(
        main, ["explain", "tests.dynamo.test_explain:make", "--target", "cpu"]
    )
    assert done.exit_code == 0, done.output
    assert "geqrf" in done.output


def make() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Model().eval(), (X,)
