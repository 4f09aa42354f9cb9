"""The order of the transforms, and why it is this one."""

from collections.abc import Callable, Mapping

import numpy as np

from monotile.config import Options
from monotile.ir.program import Program
from monotile.transform.fusion.horizontal import fuse_horizontally
from monotile.transform.fusion.inline import inline_pointwise, inline_views
from monotile.transform.layout.align_axes import align_axes
from monotile.transform.layout.reindex import reindex_reductions
from monotile.transform.legalise.buffers import normalise
from monotile.transform.legalise.own_base import own_base
from monotile.transform.legalise.own_state import own_state
from monotile.transform.roll.reroll_selects import reroll_selects
from monotile.transform.roll.roll import roll
from monotile.transform.roll.skew import skew
from monotile.transform.simplify.copy_propagation import forward_copies
from monotile.transform.simplify.dce import remove_dead
from monotile.transform.simplify.fold import fold
from monotile.transform.simplify.simplify import simplify

Constants = Mapping[str, np.ndarray]
Watch = Callable[[str, Program], None]


def transform(
    program: Program, constants: Constants, options: Options, watch: Watch
) -> tuple[Program, Constants]:
    """The optimised Program, and the constants with those that folding made.

    watch: is given the name and the product of every pass (dumps, verification).
    """

    def step(name: str, after: Program) -> Program:
        watch(name, after)
        return after

    # Views first: a repeated layer shows only when its reshapes are gone.
    program = step("inline_views", remove_dead(inline_views(program)))
    program = step("simplify", simplify(program, options))
    if options.roll:
        # Before constants are folded: the zeros that a recurrence starts from must still look like its state.
        program = step("roll", roll(program, options))
        program = step("reroll_selects", reroll_selects(program))
        program = step("wavefront", skew(program))
    program, constants = fold(program, constants)
    program = step("fold", program)
    program = step("horizontal", fuse_horizontally(program))
    # What stacked the fused siblings is now a plain view of one tensor.
    program = step("reroll_again", inline_views(reroll_selects(program)))
    program = step("inline_pointwise", inline_pointwise(program))
    program = step("simplify_again", simplify(program, options))
    program = step("align_axes", reindex_reductions(align_axes(program)))
    program = step("dead", remove_dead(forward_copies(program)))
    program = step("normalise", normalise(program))
    program = step("own_state", own_state(program))
    return step("own_base", own_base(program)), constants
