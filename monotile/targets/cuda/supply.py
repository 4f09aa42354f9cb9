"""The producer warp (the supplier): besides the computing warps, it runs through the Plan ahead of them and loads streamed weights."""

import math
from collections.abc import Sequence

from monotile.codegen.address import loop_variable
from monotile.codegen.block import GIVEN, BlockEmitter
from monotile.codegen.ring import supplier_type
from monotile.kernels.registry import family_of
from monotile.plan.launch import Ring
from monotile.plan.nodes import Choose, PlanNode, Repeat, Stage, Step
from monotile.plan.streams import any_streams, streams

NAME = "supply"


def write_supply(e: BlockEmitter, ring: Ring) -> None:
    """The supplier's function. What the Plan's loops and choices depend on it is told by the others (`RingMemory::tell`), and when what
    says where a weight's rows are is there."""
    with e.function(NAME, (), GIVEN):
        e.writer.write("char* const scratch = mt::ptx::shared_memory();")
        e.writer.write(f"{supplier_type(ring, e.target)} ring(scratch + {ring.offset});")
        _walk(e, e.plan.body)


def _walk(e: BlockEmitter, nodes: Sequence[PlanNode]) -> None:
    for node in nodes:
        here = any(map(_asks, node.steps)) if isinstance(node, Stage) else any_streams(node)
        if not here:
            continue
        match node:
            case Stage():
                _supply(e, node)
            case Repeat(axis, extent, body):
                v = loop_variable(axis)
                more = "ring.hear()" if node.ends_early else f"{v} < {extent}"
                with e.writer.open(f"for (idx {v} = 0; {more}; ++{v})", [v], fence=True):
                    _walk(e, body)
            case Choose(_, bodies):
                choice = e.writer.fresh("choice")
                e.writer.write(f"const int {choice} = ring.hear();")
                for number, body in enumerate(bodies):
                    with e.writer.open(f"if ({choice} == {number})", fence=True):
                        _walk(e, body)


def _supply(e: BlockEmitter, stage: Stage) -> None:
    """This worker's task of the stage, if it has one."""
    first, tasks = e.first_task(stage), math.prod(stage.grid)
    head = f"if (const idx task = {first}; task < {tasks})"
    with e.writer.open(head, ["task"], fence=True):
        e.write_coordinates(e.grid(stage))
        for site in e.sites(stage, bounded=False):
            if _asks(site.step):
                with e.writer.open("", fence=True):
                    family_of(site.step.method).write_supply["cuda"](e, site)


def _asks(step: Step) -> bool:
    """Whether the supplier loads weights of the step, or asks for lines of what it reads."""
    return streams(step) or step.method.ahead("ring") > 0
