"""The summary that the commands print of a compiled model."""

from collections.abc import Iterator

from monotile.plan.nodes import Choose, PlanNode, Repeat, Stage
from monotile.runtime.module import CompiledModule


def summary(fast: CompiledModule, seconds: float) -> str:
    """A compiled model in a few lines."""
    plan, launch = fast.plan, fast.plan.launch
    stages = list(_stages(plan.body))
    rounds = sum(n for _, n in stages)
    lines = {
        "target": fast.target.name,
        "compiled in": f"{seconds:.2f} s",
        "kernels": str(fast.kernels),
        "launch": f"{launch.workers} workers x {launch.threads} threads,"
        f" {launch.shared_bytes / 1024:.1f} KiB on chip each",
        "memory": f"{launch.workspace_bytes / 1024:.1f} KiB of workspace",
        "stages": f"{len(stages)}, {rounds} executions in all",
        "source": f"{len(fast.source.splitlines())} lines, built by {fast.artifact.binary.compiler}",
    }
    return "\n".join(f"{name:12s} {words}" for name, words in lines.items())


def _stages(body: tuple[PlanNode, ...], times: int = 1) -> Iterator[tuple[Stage, int]]:
    """Every stage and its number of executions per call; once where that depends on the call."""
    for node in body:
        match node:
            case Stage():
                yield node, times
            case Repeat():
                yield from _stages(node.body, times if node.ends_early else times * node.extent)
            case Choose(_, bodies):
                for inner in bodies:
                    yield from _stages(inner, times)
