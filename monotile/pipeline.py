"""The order of all passes, and why it is this one: a table from Program to Program, and a table from Program to Plan.

What a line of a table says is in `passes/table.py`; what passes work on is in `passes/programs.py` and `passes/plans.py`.
`monotile inspect MODEL --passes` prints both tables with what each pass did.
"""

from collections.abc import Callable

from monotile.choice.chooser import MODEL, Chooser
from monotile.config import Options
from monotile.errors import InternalError
from monotile.ir.program import Program
from monotile.kernels.draft import Context
from monotile.passes import plans
from monotile.passes.plans import PlanState
from monotile.passes.programs import (
    Constants,
    ProgramState,
    arrange_parameters,
    context_of,
    fold_constants,
    rewrite,
    rewrite_by_choice,
    rewrite_by_cost,
    rewrite_by_options,
    rewrite_for_target,
    stack,
    with_context,
)
from monotile.passes.table import Pass, Trace, capability, checked, option, run
from monotile.plan.nodes import Plan
from monotile.schedule.rotate import rotate_loops
from monotile.schedule.split import split_reductions
from monotile.targets.target import Target
from monotile.transform.fusion.horizontal import fuse_horizontally
from monotile.transform.fusion.inline import inline_pointwise, inline_views
from monotile.transform.layout.align_axes import align_axes
from monotile.transform.layout.channels_last import assign_layouts
from monotile.transform.layout.pad_channels import pad_channels
from monotile.transform.layout.reindex import reindex_reductions
from monotile.transform.legalise.base_copies import insert_base_copies
from monotile.transform.legalise.copy_insertion import insert_copies
from monotile.transform.legalise.state_copies import insert_state_copies
from monotile.transform.roll.reroll_selects import reroll_selects
from monotile.transform.roll.roll import roll
from monotile.transform.roll.skew import skew
from monotile.transform.simplify.copy_propagation import propagate_copies
from monotile.transform.simplify.dce import eliminate_dead_code
from monotile.transform.simplify.simplify import simplify

ROLLING = option("roll")
ARRANGING = option("arrange_parameters")
LAYOUTS = capability("layouts")
COALESCING = capability("coalescing")
MANY_WORKERS = capability("many_workers")
MESSAGES = capability("messages")
SCRATCHPAD = capability("scratchpad")
PREFETCH = capability("prefetch")

# fmt: off
ANY_TARGET: tuple[Pass[ProgramState], ...] = (
    Pass("inline_views", rewrite(inline_views),
         "A repeated layer shows only when its reshapes are gone.",
         sets=("views inlined",)),
    Pass("eliminate_dead_code", rewrite(eliminate_dead_code),
         "Views that no one reads any more would be in the way of finding what repeats.",
         needs=("views inlined",)),
    Pass("simplify", rewrite_by_options(simplify),
         "Layers that say the same in other words are written alike from here on.",
         needs=("views inlined",), sets=("simplified",)),
    Pass("roll", rewrite_by_choice(roll),
         "Repeats show when views are gone and what is equal is written alike.",
         needs=("views inlined", "simplified"), sets=("rolled",), where=(ROLLING,)),
    Pass("reroll_selects", rewrite(reroll_selects),
         "Rolling has made one tensor of many, so a stack of these is a view of it.",
         needs=("rolled",), where=(ROLLING,)),
    Pass("skew", rewrite(skew),
         "A nest of layers and steps is a nest once both loops are rolled and nothing is stacked between them.",
         needs=("rolled",), sets=("skewed",), where=(ROLLING,)),
    Pass("fold", fold_constants,
         "After rolling: there the zeros that a recurrence starts from must still look like its state.",
         needs=("simplified",), sets=("constants folded",), after=("rolled",)),
    Pass("fuse_horizontally", rewrite(fuse_horizontally),
         "After rolling: a layer's siblings are fused once, for all layers.",
         needs=("simplified",), sets=("siblings fused",), after=("rolled", "skewed")),
    Pass("reroll_selects_again", rewrite(reroll_selects),
         "What stacked the fused siblings is a selection from one tensor now.",
         needs=("siblings fused",)),
    Pass("inline_views_again", rewrite(inline_views),
         "The selections that are left are plain views of that tensor.",
         needs=("siblings fused",)),
    Pass("inline_pointwise", rewrite(inline_pointwise),
         "After horizontal fusion, which needs the siblings' statements apart from their readers.",
         needs=("views inlined", "siblings fused"), sets=("pointwise inlined",)),
    Pass("simplify_again", rewrite_by_options(simplify),
         "Inlined expressions meet the ones around them.",
         needs=("pointwise inlined",)),
    Pass("align_axes", rewrite(align_axes),
         "The readers that remain are the epilogues to be: their producers take over their shape.",
         needs=("pointwise inlined",), sets=("axes aligned",)),
    Pass("reindex_reductions", rewrite(reindex_reductions),
         "What differs from its reader by more than an order of axes is left to this.",
         needs=("axes aligned",)),
    Pass("propagate_copies", rewrite(propagate_copies),
         "No pass after it inlines, so the copies that are left are there to be used as a whole.",
         needs=("pointwise inlined",), sets=("copies forwarded",)),
    Pass("eliminate_dead_code_again", rewrite(eliminate_dead_code),
         "Copies that are passed by, and weights that folding replaced, go.",
         needs=("copies forwarded", "constants folded"), sets=("dead code removed",)),
    Pass("insert_copies", rewrite(insert_copies),
         "The scheduler's form comes last: the copies that it adds would be forwarded again.",
         needs=("copies forwarded", "dead code removed"), sets=("own buffers",)),
    Pass("insert_state_copies", rewrite(insert_state_copies),
         "A state's new value has a statement of its own only when every result has a buffer of its own.",
         needs=("own buffers",), sets=("one writer a state",)),
    Pass("insert_base_copies", rewrite(insert_base_copies),
         "A base may be a state's old value, if the state has no other writer.",
         needs=("own buffers", "one writer a state"), sets=("own bases",)),
)
AT_THE_BORDER: tuple[Pass[ProgramState], ...] = (
    Pass("stack_results", stack,
         "After own bases: what is read is then not updated in place, so a tensor that is read may become a result.",
         needs=("own bases",), sets=("results settled",)),
    Pass("arrange_parameters", arrange_parameters,
         "Before layouts, which copy what the caller holds in another order.",
         needs=("own bases",), sets=("parameters arranged",), where=(ARRANGING, LAYOUTS)),
)
FOR_TARGET: tuple[Pass[ProgramState], ...] = (
    Pass("pad_channels", rewrite_for_target(pad_channels),
         "Three channels become four before it is decided which channels lie side by side.",
         needs=("own bases",), sets=("channels padded",), after=("parameters arranged",), where=(LAYOUTS,)),
    Pass("assign_layouts", rewrite_for_target(assign_layouts),
         "Before anything is cut: how a product can be cut depends on the order of its operands in memory.",
         needs=("own bases", "channels padded"), sets=("layouts chosen",), after=("parameters arranged",), where=(LAYOUTS,)),
    Pass("context", with_context,
         "From here on passes ask the cost model, and keep what it finds for those after them.",
         needs=("own bases",), sets=("context",), after=("layouts chosen",)),
    Pass("split_reductions", rewrite_by_cost(split_reductions),
         "The cost model compares whole schedules, so it needs every tensor's layout.",
         needs=("context",), sets=("reductions split",), after=("layouts chosen",), where=(MANY_WORKERS,)),
    Pass("rotate_loops", rewrite_by_cost(rotate_loops),
         "Whether a rotation saves a stage depends on how reductions are split; the rotated loop is split anew.",
         needs=("context",), sets=("loops rotated",), after=("reductions split",)),
)
PROGRAMS = checked((*ANY_TARGET, *AT_THE_BORDER, *FOR_TARGET))

PLANS: tuple[Pass[PlanState], ...] = checked((
    Pass("group_and_cut", plans.group_and_cut,
         "Everything else is about stages and their tasks.",
         needs=("own buffers", "own bases", "context"), sets=("stages",), after=("reductions split", "loops rotated")),
    Pass("share_workers", plans.share,
         "Before memory: how a stage is cut says what its tasks keep on chip.",
         needs=("stages",), sets=("workers shared",), where=(MANY_WORKERS,)),
    Pass("place_tensors", plans.place_tensors,
         "Live ranges follow the order of the stages, which is settled now.",
         needs=("stages",), sets=("places",), after=("workers shared",)),
    Pass("list_stages", plans.list_stages,
         "From here on passes change single fields of the Plan's own nodes.",
         needs=("stages",), sets=("nodes",), after=("workers shared",)),
    Pass("spread_copies", plans.spread_copies,
         "Before hand-offs: how many tasks the copies have says on which workers they run.",
         needs=("nodes",), sets=("copies spread",), where=(COALESCING,)),
    Pass("messages", plans.messages,
         "Before hand-offs: loops with messages need no other ones inside.",
         needs=("nodes", "places"), sets=("messages",), after=("copies spread",), where=(MESSAGES,)),
    Pass("hand_offs", plans.hand_offs,
         "The number of tasks and all places are known: who waits for whom follows from them.",
         needs=("nodes", "places"), sets=("hand-offs",), after=("copies spread", "messages")),
    Pass("pin_weights", plans.pin_weights,
         "What stages and messages leave of the on-chip memory is for weights.",
         needs=("nodes",), sets=("weights pinned",), after=("messages",), where=(SCRATCHPAD,)),
    Pass("messages_or_weights", plans.messages_or_weights,
         "Only now is it known how many weights the room for messages has cost.",
         needs=("messages", "hand-offs", "weights pinned"), sets=("messages settled",), where=(MESSAGES, SCRATCHPAD)),
    Pass("hold_in_registers", plans.hold_in_registers,
         "Which weights are pinned is settled, and some of them fit into registers.",
         needs=("weights pinned",), sets=("registers",), after=("messages settled",), where=(SCRATCHPAD,)),
    Pass("prefetch", plans.load_ahead,
         "A stage waits late only behind a grid barrier, and one whose weights are pinned has none to load ahead.",
         needs=("hand-offs",), sets=("prefetches",), after=("weights pinned", "messages settled"), where=(PREFETCH,)),
    Pass("launch", plans.launch,
         "All figures of the launch are known.",
         needs=("places", "hand-offs"), sets=("plan",), after=("messages settled", "registers", "prefetches")),
), before=PROGRAMS)
# fmt: on


def lower(
    state: ProgramState,
    watch: Callable[[str, ProgramState], None] | None = None,
    traces: list[Trace] | None = None,
) -> ProgramState:
    """`state` after all passes from Program to Program. watch, traces: as `passes.table.run` takes them."""
    return run(PROGRAMS, state, watch, traces)


def to_plan(
    state: PlanState,
    watch: Callable[[str, PlanState], None] | None = None,
    traces: list[Trace] | None = None,
) -> Plan:
    """The Plan that all passes from Program to Plan make. Raises ScheduleError where no legal one exists."""
    found = run(PLANS, state, watch, traces).plan
    if found is None:
        raise InternalError("the last pass has made no Plan")
    return found


Watch = Callable[[str, Program], None]


def transform(
    program: Program,
    constants: Constants,
    options: Options,
    watch: Watch | None = None,
    chooser: Chooser = MODEL,
) -> tuple[Program, Constants]:
    """The passes for any target alone: the Program, and the constants with those that folding made.

    watch: is given the name and the product of each pass. chooser: who is asked where there are several ways.
    """
    first = ProgramState(program, options, constants=constants, chooser=chooser)
    done = run(ANY_TARGET, first, _of(watch))
    return done.program, done.constants


def for_target(
    program: Program, target: Target, watch: Watch | None = None, chooser: Chooser = MODEL
) -> tuple[Program, Context]:
    """The passes for one target alone: the Program as `schedule` takes it, and what is known by then about how it may be cut."""
    first = ProgramState(program, Options(), target, chooser=chooser)
    done = run(FOR_TARGET, first, _of(watch))
    return done.program, context_of(done)


def schedule(
    program: Program,
    target: Target,
    options: Options,
    context: Context | None = None,
    chooser: Chooser | None = None,
) -> Plan:
    """A Plan of `program` as it is. context, chooser: as `PlanState.of` takes them.

    Raises ScheduleError where no legal Plan exists.
    """
    return to_plan(PlanState.of(program, target, options, context, chooser))


def _of(watch: Watch | None) -> Callable[[str, ProgramState], None] | None:
    return None if watch is None else lambda name, s: watch(name, s.program)
