"""Independent loops of equal extent become one, and mean the same; others stay."""

from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import nn

from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.ir.dtype import DType
from monotile.ir.expr import Tensor, const, idx
from monotile.ir.program import Compute, Loop, Program, Scatter, Statement, scalar
from monotile.pipeline import transform
from monotile.transform.rewrite import map_program
from monotile.transform.roll.jam import jam, jammable
from tests.transform.networks import assert_same

replace = msgspec.structs.replace


def lowered(model: nn.Module, steps: int = 4) -> Program:
    captured = capture(model.eval(), (torch.randn(steps, 2, 6),))
    return transform(captured.program, captured.constants, Options())[0]


def directions(layers: int = 1) -> Program:
    return lowered(nn.GRU(6, 6, layers, bidirectional=True))


def jammed(program: Program) -> Program:
    while pair := next(jammable(program), None):
        after = jam(program, pair)
        assert_same(program, after)
        program = after
    return program


def loops(body: tuple[Statement, ...]) -> list[Loop]:
    return [s for s in body if isinstance(s, Loop)]


@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.GRU(6, 6, bidirectional=True),
        lambda: nn.LSTM(6, 5, bidirectional=True),
        lambda: nn.RNN(6, 6, bidirectional=True).half(),
    ],
)
def test_directions(model: Callable[[], nn.Module]) -> None:
    dtype = next(model().parameters()).dtype
    captured = capture(model().eval(), (torch.randn(4, 2, 6, dtype=dtype),))
    program = jammed(transform(captured.program, captured.constants, Options())[0])
    (loop,) = loops(program.body)
    assert len(loop.stacked) == 2


def test_layers_of_directions() -> None:
    """Inside of the loop over the layers, and before it."""
    first, layers = loops(jammed(directions(4)).body)
    (inner,) = loops(layers.body)
    assert (first.axis.extent, layers.axis.extent, inner.axis.extent) == (4, 3, 4)
    assert len(first.carried) == len(inner.carried) == 2


def test_statements_of_equal_depth_stand_side_by_side() -> None:
    (loop,) = loops(jammed(directions()).body)
    kinds = [s.combiner for s in loop.body if isinstance(s, Compute)]
    assert kinds == ["sum"] * 2 + [None] * 2


def changed(program: Program, f: Callable[[Loop], Loop]) -> Program:
    """`program` with its second loop changed."""
    second = loops(program.body)[1].axis.name
    return map_program(
        program, lambda s: f(s) if isinstance(s, Loop) and s.axis.name == second else s
    )


def test_what_ends_early_stays() -> None:
    p, count = directions(), scalar("count", DType.I64)
    assert next(jammable(p), None) is not None
    early = changed(replace(p, inputs=(*p.inputs, count)), lambda s: replace(s, count=count))
    assert next(jammable(early), None) is None


def test_what_updates_in_place_stays() -> None:
    p, base = directions(), Tensor("base", (4,), DType.F32)
    p = replace(p, inputs=(*p.inputs, base))

    def scattering(loop: Loop) -> Loop:
        out = Tensor("scattered", base.shape, base.dtype)
        update = Scatter(out, base, (), (idx(0),), const(0.0, base.dtype))
        return replace(loop, body=(*loop.body, update))

    assert next(jammable(changed(p, scattering)), None) is None


def test_a_chain_stays() -> None:
    class Chained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.GRU(6, 6), nn.LSTM(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x)[0].flip(0))[0]

    p = lowered(Chained())
    assert len(loops(p.body)) == 2
    assert next(jammable(p), None) is None


def test_other_extents_stay() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.GRU(6, 6), nn.GRU(6, 6)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.a(x)[0], self.b(x[1:])[0]

    assert next(jammable(lowered(Two(), 5)), None) is None
