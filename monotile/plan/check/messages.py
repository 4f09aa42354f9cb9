"""Checks a Plan's messages: each is written before it is read, in every call, and no wait deadlocks.

A task waits for values of earlier iterations, or of earlier stages of its own iteration. All workers are resident and run the body in
the same order, so by induction over iterations and stages every awaited value is written. Every element of a message is computed in each
iteration, so no slot keeps the tag of an earlier call.
"""

import math

from monotile.ir.program import Compute, Loop, Program, statements
from monotile.plan.invalid import fail
from monotile.plan.messages import TAGGED, WIDEST, message_stride, receive_vector
from monotile.plan.nodes import Plan, Receive, Repeat, Stage
from monotile.plan.parts import Statements, box_of, covers, loads_in
from monotile.plan.walk import repeats


def check_messages(plan: Plan, program: Program, computes: Statements) -> None:
    """Raises VerificationError naming the loop or the stage at fault. `schedule.replay` checks all other memory."""
    loops = {s.axis.name: s for s in statements(program.body) if isinstance(s, Loop)}
    taken: list[tuple[str, int, int]] = []
    for node in repeats(plan.body):
        if not node.messages:
            if node.receives or (node.handoff != "none" and not node.ends_early):
                fail(f"the loop over {node.axis} waits for messages and has none")
            continue
        stages = [n for n in node.body if isinstance(n, Stage)]
        if len(stages) < len(node.body):
            fail(f"the loop over {node.axis} has messages and a loop inside")
        _check_waits(node, stages, plan.launch.workers)
        makers = _makers(node, stages, computes)
        for m in node.messages:
            size = node.extent * message_stride(computes[m.tensor].out)
            taken.append((m.tensor, m.offset, m.offset + size))
        for r in node.receives:
            _check_receive(r, loops[node.axis], stages, makers, computes)
        names = [(r.stage, r.tensor) for r in node.receives]
        if len(set(names)) < len(names):
            fail(f"a stage of the loop over {node.axis} receives a message twice")
    _check_memory(taken, plan.launch.message_bytes)


def _check_waits(node: Repeat, stages: list[Stage], workers: int) -> None:
    """In a loop with messages alone, no stage needs more than a barrier of the block. In a loop with grid barriers too, there is one in
    each iteration, so that no task still polls a slot when the loop's next run writes it."""
    barriers = any(s.handoff == "grid" for s in stages)
    receivers = {r.stage for r in node.receives}
    for stage in stages:
        alone = stage.name in receivers or not barriers
        if alone and (stage.handoff == "none" or math.prod(stage.grid) > workers):
            fail(f"{stage.name} hands on messages, and its tasks are not a block each")
    if barriers and node.extent < 2:
        fail(f"the loop over {node.axis} has one iteration, and messages beside barriers")


def _makers(node: Repeat, stages: list[Stage], computes: Statements) -> dict[str, int]:
    """Maps each message to the number of the stage that computes it."""
    out: dict[str, int] = {}
    for m in node.messages:
        for number, stage in enumerate(stages):
            for step in stage.steps:
                if m.tensor in step.computes[step.anchor :] and not step.bounds:
                    out[m.tensor] = number
        s = computes.get(m.tensor)
        if m.tensor not in out or not isinstance(s, Compute) or s.out.dtype.itemsize > WIDEST:
            fail(f"{m.tensor} is no message that the loop over {node.axis} makes")
    return out


def _check_receive(
    r: Receive, loop: Loop, stages: list[Stage], makers: dict[str, int], computes: Statements
) -> None:
    number = next((k for k, s in enumerate(stages) if s.name == r.stage), None)
    if number is None or r.message not in makers:
        fail(f"{r.stage} receives {r.message}, which is no message of its loop")
        return
    stage, t = stages[number], computes[r.message].out
    if r.tensor == r.message:
        if makers[r.message] >= number:
            fail(f"{r.stage} waits for {r.message}, which is made after it")
    elif not any(c.param.name == r.tensor and c.result == t for c in loop.carried):
        fail(f"{r.tensor} is not what {r.message} was an iteration before")
    uses = [(step, x) for step, _, x in loads_in(stage, r.tensor, computes)]
    box = r.place.box
    if not uses or not covers(box, box_of(stage, uses[0][1].tensor, computes), t):
        fail(f"{r.stage} reads more of {r.tensor} than it receives")
    if any(not step.method.reads_shared for step, _ in uses):
        fail(f"{r.stage} cannot read {r.tensor} on chip")
    if r.place.offset % 16 or r.place.pitch != (box[-1].extent if box else 1):
        fail(f"{r.stage} receives {r.tensor} where vectors of it cannot be stored")
    if r.vector not in (1, receive_vector(box, t)):
        fail(f"{r.stage} cannot receive {r.vector} values of {r.tensor} at once")


def _check_memory(taken: list[tuple[str, int, int]], size: int) -> None:
    """Checks that messages have memory of their own, in pairs of values."""
    for i, (name, low, high) in enumerate(taken):
        if low % (2 * TAGGED) or low < 0 or high > size:
            fail(f"the message {name} reaches past the {size} bytes for messages")
        for other, low2, high2 in taken[i + 1 :]:
            if low < high2 and low2 < high:
                fail(f"the messages {name} and {other} share memory")
