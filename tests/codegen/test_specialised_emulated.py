"""Pruned models, specialised, as CUDA kernels on the emulator against PyTorch; parameters as the runtime gathers them, in any order in memory."""

import numpy as np
import pytest
import torch

from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.frontends.torch.orders import in_memory_order
from monotile.frontends.torch.types import to_numpy
from monotile.ir.signature import TensorLeaf
from monotile.passes.plans import PlanState
from monotile.passes.programs import ProgramState
from monotile.pipeline import lower, to_plan
from monotile.plan.check.structure import verify
from monotile.runtime.arrange import in_order
from monotile.runtime.parameter_values import gather, zeros_of
from monotile.targets.cuda.emit import settle
from monotile.targets.cuda.target import cuda_target
from tests.codegen.emulate import COMPILER, emulate
from tests.runtime.pruned_models import MODELS, seeded

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
TARGET = cuda_target("sm_90a")
OPTIONS = Options(workers=3, specialise=True)


CASES = [("encoder", False), ("mlp", False), ("resnet", False), ("resnet", True)]


@pytest.mark.parametrize(("name", "last"), CASES)
def test_as_pytorch(name: str, last: bool) -> None:
    model, args, kept = seeded(MODELS[name])
    if last:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    exported = export(model, args)
    captured, orders = in_memory_order(capture(exported), exported)
    facts = zeros_of(exported.state_dict)
    facts = {n: z.permuted(orders[n]) if n in orders else z for n, z in facts.items()}
    state = lower(
        ProgramState(
            captured.program,
            OPTIONS,
            TARGET,
            captured.constants,
            frozenset(captured.parameters),
            facts=facts,
        )
    )
    report = state.specialised.in_order(orders)
    assert [(r.kept, r.of) for r in report.removed] == kept

    plan = to_plan(PlanState.of(state.program, TARGET, OPTIONS, state.context))
    plan, source = settle(state.program, plan, TARGET, OPTIONS)
    verify(plan, state.program, TARGET)
    values: dict[str, np.ndarray] = {}
    for n, x in captured.parameters.items():
        order = orders.get(n, (*range(x.dim()),))
        smaller = in_order(gather(x.detach(), report.gathered.get(n)), order)
        values[n] = to_numpy(smaller.permute(order))
    leaves = [x for x in captured.signature.inputs if isinstance(x, TensorLeaf)]
    values |= {leaf.tensor.name: to_numpy(x) for leaf, x in zip(leaves, args, strict=True)}
    values |= state.constants
    found = emulate(state.program, plan, source, values)
    right = model.double()(*(x.double() for x in args)).detach().numpy()
    np.testing.assert_allclose(found[0].astype(float), right, rtol=1e-4, atol=1e-4)
