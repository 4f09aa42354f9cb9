"""What is done to a Program for one target before it is scheduled, in this order; nothing on the CPU."""

from collections.abc import Callable

from monotile.ir.program import Program
from monotile.kernels.draft import Context
from monotile.schedule.rotate import rotate_loops
from monotile.schedule.split import split_reductions
from monotile.targets.target import Target
from monotile.transform.layout.channels_last import lay_out
from monotile.transform.layout.pad_channels import pad_channels

Watch = Callable[[str, Program], None]


def for_target(
    program: Program, target: Target, watch: Watch = lambda *_: None
) -> tuple[Program, Context]:
    """The Program as `schedule` takes it, and what is known by then about how its parts may be cut.

    watch: is given the name and the product of every pass.
    """

    def step(name: str, after: Program) -> Program:
        watch(name, after)
        return after

    program = step("pad_channels", pad_channels(program, target))
    program = step("layouts", lay_out(program, target))
    context = Context.of(program, target)
    program = step("split", split_reductions(program, target, context))
    return step("rotate", rotate_loops(program, target, context)), context
