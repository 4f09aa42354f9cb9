"""A PyTorch model as its CUDA kernel on the emulator, called several times."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from monotile.choice.chooser import MODEL, Chooser
from monotile.config import Options
from monotile.frontends.torch.capture import Captured, capture
from monotile.frontends.torch.types import to_numpy
from monotile.ir.program import Program
from monotile.ir.signature import OutputLeaf, TensorLeaf
from monotile.passes.programs import ProgramState
from monotile.passes.table import run
from monotile.pipeline import ANY_TARGET, for_target, schedule
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan
from monotile.runtime.parameter_values import ascending_in
from monotile.runtime.tensors import from_numpy
from monotile.targets.cuda.emit import settle
from monotile.targets.cuda.target import cuda_target
from monotile.targets.target import Target
from monotile.transform.iterate import Iterate
from tests.codegen.emulate import emulate

TARGET = cuda_target("sm_90a")


class Emulated:
    """`model`, a module or a captured one, for arguments like `args`, tensors all of them, by blocks of sm_90a. states: by name, as the last call has left them."""

    program: Program
    plan: Plan
    states: dict[str, np.ndarray]

    def __init__(
        self,
        model: nn.Module | Captured,
        args: Sequence[torch.Tensor],
        workers: int = 3,
        iterate: Iterate | None = None,
        target: Target = TARGET,
        chooser: Chooser = MODEL,
    ) -> None:
        self.options = Options(workers=workers)
        self.captured = model if isinstance(model, Captured) else capture(model, tuple(args))
        sparse = "wgmma.sp" in target.instructions
        ascending = ascending_in(self.captured.parameters) if sparse else frozenset[str]()
        first = ProgramState(
            self.captured.program, self.options, constants=self.captured.constants,
            parameters=frozenset(self.captured.parameters), iterate=iterate, ascending=ascending,
        )  # fmt: skip
        done = run(ANY_TARGET, first)
        program, self.constants = done.program, done.constants
        self.program, context = for_target(program, target, chooser=chooser)
        plan = schedule(self.program, target, self.options, context, chooser)
        self.plan, self.source = settle(self.program, plan, target, self.options)
        verify(self.plan, self.program, target)

    def __call__(self, *args: torch.Tensor, seed: int = 0) -> list[torch.Tensor]:
        """Its results, in their order."""
        values: dict[str, np.ndarray] = {
            n: to_numpy(x) for n, x in self.captured.parameters.items()
        }
        values |= self.constants
        leaves = [x for x in self.captured.signature.inputs if isinstance(x, TensorLeaf)]
        values |= {leaf.tensor.name: to_numpy(x) for leaf, x in zip(leaves, args, strict=True)}
        found = emulate(self.program, self.plan, self.source, values, late=seed % 2 == 0, seed=seed)
        count = len(self.program.results)
        self.states = dict(zip(self.program.states, found[count:], strict=True))
        outputs = self.captured.signature.outputs
        assert all(isinstance(o, OutputLeaf) and not o.row for o in outputs)
        return [from_numpy(found[o.index]) for o in outputs if isinstance(o, OutputLeaf)]
