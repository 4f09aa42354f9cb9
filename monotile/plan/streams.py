"""Which steps stream weights through the workers' rings."""

from monotile.plan.nodes import PlanNode, Step
from monotile.plan.walk import stages_in


def streams(step: Step) -> bool:
    """Whether weights of the step come through the ring."""
    return step.method.slot_bytes > 0


def any_streams(node: PlanNode) -> bool:
    """Whether those of a step in it do."""
    return any(streams(s) for stage in stages_in((node,)) for s in stage.steps)
