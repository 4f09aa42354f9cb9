"""What functions of PyTorch's do otherwise while a model is traced, and the stack traces of what they record."""

import torch
from torch import Tensor, nn

from monotile.frontends.torch.origin import origin
from monotile.frontends.torch.tracing.overrides import FunctionOverrides
from monotile.frontends.torch.tracing.stack_traces import frames_written_once


def test_a_table_of_names() -> None:
    def doubled(func, args, named):
        return 2 * func(*args, **named)

    with FunctionOverrides({"sin": doubled}, {}):
        x = torch.ones(3)
        assert torch.equal(torch.sin(x), 2 * x.sin() / 2)
        assert torch.equal(torch.cos(x), torch.ones(3).cos())
    assert torch.equal(torch.sin(x), torch.ones(3).sin())


class Lines(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = x / 2
        return x * 3


def test_stack_traces_are_those_of_pytorch() -> None:
    def traces() -> list[str | None]:
        exported = torch.export.export(Lines(), (torch.ones(2),))
        return [n.stack_trace for n in exported.graph.nodes if n.op == "call_function"]

    plain = traces()
    with frames_written_once():
        found = traces()
    assert [*map(_below, found)] == [*map(_below, plain)]
    lines = [origin(x).rpartition(": ")[2] for x in found]
    assert lines == ["x = x / 2", "x = x / 2", "return x * 3"]


def _below(trace: str | None) -> str:
    """Without what calls `traces`."""
    return (trace or "").partition("in traces")[2]
