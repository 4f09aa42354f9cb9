"""How many kernels a model compiles to, and why it is more than one."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import fx
from torch._dynamo import reset
from torch._dynamo.utils import counters
from torch.export import ExportedProgram

from monotile.compile import compile
from monotile.config import Options
from monotile.dynamo.graph import Graph, Settings
from monotile.errors import MonotileError
from monotile.frontends.torch.origin import describe_line, is_users

_WORDS = {"generic_jump TensorVariable()": "a branch on a tensor's value"}


class Part(msgspec.Struct, frozen=True):
    """One graph of Dynamo. reasons: why it is not one kernel: operators, each with the user's line."""

    kernels: int
    reasons: tuple[str, ...]


class Explanation(msgspec.Struct, frozen=True):
    """obstacle: why `monotile.compile` refuses the model; "" if it compiles to one kernel.
    parts: the graphs that Dynamo made of the model, as they ran. breaks: its graph breaks and their reasons."""

    obstacle: str
    parts: tuple[Part, ...]
    breaks: tuple[str, ...]

    @property
    def kernels(self) -> int:
        """Kernels of Monotile per call under torch.compile, without those that PyTorch runs in between."""
        return sum(p.kernels for p in self.parts)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The operators that PyTorch runs under torch.compile, each with the user's line."""
        return tuple(dict.fromkeys(r for p in self.parts for r in p.reasons))

    @property
    def whole(self) -> bool:
        """Whether the model is exactly one kernel under torch.compile."""
        return not self.breaks and [p.kernels for p in self.parts] == [1] and not self.reasons

    def __str__(self) -> str:
        direct = (
            "1 kernel" if not self.obstacle else f"refused\n{textwrap.indent(self.obstacle, '  ')}"
        )
        count = "1 kernel" if self.kernels == 1 else f"{self.kernels} kernels"
        lines = [f"monotile.compile: {direct}"]
        lines += [f"torch.compile: {count}{'' if self.whole else ', and PyTorch for the rest'}"]
        for title, found in (("breaks the graph at", self.breaks), ("runs", self.reasons)):
            if found:
                lines += [f"  PyTorch {title}", *(f"    {words}" for words in found)]
        return "\n".join(lines)


def explain(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options = Options(),
) -> Explanation:
    """Compiles `model` both ways, runs it once under torch.compile without gradients, and reports the result.

    In-place updates of the model take effect. Dynamo's compiled code of this process is reset.
    """
    try:
        compile(model, args, kwargs, target=target, options=options)
        obstacle = ""
    except MonotileError as e:
        obstacle = str(e)
    runnable = model.module(check_guards=False) if isinstance(model, ExportedProgram) else model
    graphs: list[Graph] = []
    breaks: list[str] = []
    settings = Settings(None if target == "auto" else target, options)

    def record(module: fx.GraphModule, _: Sequence[object]) -> Graph:
        graphs.append(Graph(module, settings))
        reason = getattr(module, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            breaks.append(_break(reason))
        return graphs[-1]

    reset()
    before = dict(counters["unimplemented"])
    with torch.no_grad():
        torch.compile(runnable, backend=record, dynamic=False)(*args, **(kwargs or {}))
    if not graphs:  # Dynamo left everything to Python
        now = counters["unimplemented"]
        missed = [words for words, count in now.items() if before.get(words) != count]
        breaks += [str(words).partition("\n")[0] for words in missed]
    parts = tuple(Part(g.kernels, g.reasons) for g in graphs if g.called)
    return Explanation(obstacle, parts, tuple(dict.fromkeys(breaks)))


def _break(reason: Any) -> str:
    words = str(reason.reason).partition("\n")[0]
    words = _WORDS.get(words, words)
    for frame in reversed(list(reason.user_stack or ())):
        if is_users(frame.filename):
            where = describe_line(frame.filename, frame.lineno or 0, frame.name, frame.line or "")
            return f"{words}, at {where}"
    return words
