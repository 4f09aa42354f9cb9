"""Which steps stream weights through the workers' rings, and which stages run beside them."""

from collections.abc import Iterator, Sequence

from monotile.plan.nodes import PlanNode, Repeat, Stage, Step
from monotile.plan.walk import stages_in


def streams(step: Step) -> bool:
    """Whether weights of the step come through the ring."""
    return step.method.slot_bytes > 0


def any_streams(node: PlanNode) -> bool:
    """Whether a step of the node streams weights."""
    return any(streams(s) for stage in stages_in((node,)) for s in stage.steps)


def beside_streams(nodes: Sequence[PlanNode]) -> Iterator[str]:
    """The stages of loops in whose bodies weights stream: whatever time they take delays the stream."""
    for node in nodes:
        if isinstance(node, Repeat):
            stages = [n for n in node.body if isinstance(n, Stage)]
            if any(map(any_streams, stages)):
                yield from (s.name for s in stages)
            yield from beside_streams(node.body)
