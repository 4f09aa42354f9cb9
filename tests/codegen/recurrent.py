"""Small recurrent networks, compiled for a GPU of few workers and run on the emulator."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from monotile.config import Options
from monotile.frontends.torch.capture import Captured, capture
from monotile.frontends.torch.export import export
from monotile.frontends.torch.types import to_numpy
from monotile.ir.program import Program
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan, PlanNode, Repeat
from monotile.plan.records import words
from monotile.runtime.profile import Profile, decode
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from monotile.targets.target import Target
from tests.codegen.emulate import Memory, emulate, launch, launch_of

H100 = cuda_target("sm_90a")


class Cells(nn.Module):
    """Layers of a cell written by hand, unrolled. hidden: the cell's state goes through another product, over all of it."""

    def __init__(self, width: int, layers: int, *, hidden: bool = False) -> None:
        super().__init__()
        self.w = nn.ParameterList(torch.randn(width, width) / width**0.5 for _ in range(layers))
        self.u = nn.ParameterList(torch.randn(width, width) / width**0.5 for _ in range(layers))
        self.v = nn.ParameterList(torch.randn(width, width) / width**0.5 for _ in range(layers))
        self.hidden = hidden

    def forward(self, x: Tensor) -> Tensor:
        out = list(x)
        for k in range(len(self.w)):
            h = torch.zeros_like(out[0])
            for t in range(len(out)):
                h = torch.tanh(out[t] @ self.w[k].T + h @ self.u[k].T)
                if self.hidden:
                    h = torch.sin(h @ self.v[k].T)
                out[t] = h
        return torch.stack(out)


@dataclass(frozen=True)
class Built:
    model: nn.Module
    captured: Captured
    program: Program
    plan: Plan
    constants: dict[str, np.ndarray]
    options: Options

    def run(self, x: Tensor, memory: Memory | None = None, seed: int = 0) -> list[np.ndarray]:
        """The results of one call on the emulator."""
        source = emit(self.program, self.plan, H100, self.options)
        values = self._values(x)
        return list(emulate(self.program, self.plan, source, values, seed=seed, memory=memory))

    def profile(self, x: Tensor) -> Profile:
        """What a call of the profiled kernel wrote down."""
        source, values = emit(self.program, self.plan, H100, self.options), self._values(x)
        records = np.zeros(words(self.plan), np.uint64)
        arrays = [values[n] for n in self.plan.inputs]
        arrays += [np.zeros(t.nbytes, np.uint8) for t in self.program.results]
        arrays += [*(values[n] for n in self.plan.weights), records]
        (held,) = launch(
            source.text,
            arrays,
            launch_of(self.plan),
            late=True,
            seed=0,
            results=[len(arrays) - 1],
        )
        return decode(self.plan, held[: records.nbytes].view(np.uint64))

    def _values(self, x: Tensor) -> dict[str, np.ndarray]:
        values = {n: to_numpy(p.detach()) for n, p in self.captured.parameters.items()}
        return values | self.constants | {self.program.inputs[0].name: to_numpy(x)}

    def wanted(self, x: Tensor) -> list[np.ndarray]:
        """What PyTorch gives."""
        with torch.no_grad():
            return [to_numpy(t.detach()) for t in pytree.tree_leaves(self.model(x))]

    def memory(self) -> Memory:
        return Memory(launch_of(self.plan))

    @property
    def loops(self) -> list[Repeat]:
        return loops_of(self.plan)


def loops_of(plan: Plan) -> list[Repeat]:
    def of(nodes: tuple[PlanNode, ...]) -> list[Repeat]:
        found = [n for n in nodes if isinstance(n, Repeat)]
        return found + [inner for n in found for inner in of(n.body)]

    return of(plan.body)


def build(
    make: Callable[[], nn.Module], x: Tensor, options: Options, target: Target = H100
) -> Built:
    torch.manual_seed(0)
    model = make().eval()
    captured = capture(export(model, (x,), None))
    program, constants = transform(captured.program, captured.constants, options, lambda *_: None)
    program, context = for_target(program, target)
    plan = schedule(program, target, options, context)
    verify(plan, program, target)
    return Built(model, captured, program, plan, dict(constants), options)
