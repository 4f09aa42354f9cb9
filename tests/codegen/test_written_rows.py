"""Rows of a call's size that are written into a state, as a prompt's keys into a cache: whole tasks are skipped, and no writes collide."""

import msgspec
import pytest
import torch
from torch import nn
from torch.export import Dim

from monotile.config import Options
from monotile.ir.expr import Load, binary
from monotile.ir.held import released
from monotile.ir.program import Scatter, statements
from monotile.kernels.elementwise.method import Map
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.walk import stages_in
from monotile.targets.cuda.emit import settle
from monotile.targets.cuda.target import cuda_target
from tests.codegen.emulate import COMPILER, emulate
from tests.frontend.sized import Sized

CUDA = cuda_target("sm_90a")
ROWS, MOST = 96, 80


class Cache(nn.Module):
    """added: whether to what is there."""

    def __init__(self, added: bool) -> None:
        super().__init__()
        self.added = added
        self.register_buffer("rows", torch.arange(2.0 * ROWS * 32).view(2, ROWS, 32))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        where = at + torch.arange(x.shape[1])
        new = self.rows[:, where] + x if self.added else x.sin()
        self.rows.index_copy_(1, where, new)
        return at + 1


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_rows_of_a_call(added: bool) -> None:
    example = torch.randn(2, MOST, 32), torch.tensor(3)
    sized = Sized(Cache(added), example, ({1: Dim("n", min=2, max=MOST)}, {}))
    options = Options(workers=5)
    program, constants = transform(sized.captured.program, sized.captured.constants, options)
    program, context = for_target(program, CUDA)
    plan, source = settle(program, schedule(program, CUDA, options, context), CUDA, options)
    verify(plan, program, CUDA)
    (scatter,) = (s for s in statements(program.body) if isinstance(s, Scatter))
    (stage,) = (s for s in stages_in(plan.body) if scatter.out.name in s.steps[-1].computes)
    assert isinstance(stage.steps[-1].method, Map)
    assert stage.live
    _, live = released(scatter)
    assert [x.axis.extent for x in live] == [MOST]
    more = binary("add", Load(scatter.base, scatter.index), scatter.value)
    assert released(msgspec.structs.replace(scatter, value=more)) == (scatter.index, ())
    for n, at in ((2, 0), (17, 79), (64, 5), (MOST, 16)):
        x = torch.randn(2, n, 32)
        module = Cache(added)
        values = sized.values(program, (x, torch.tensor(at)), constants)
        found = emulate(program, plan, source, values, seed=n)
        module(x, torch.tensor(at))
        torch.testing.assert_close(torch.from_numpy(found[-1]), module.rows)
