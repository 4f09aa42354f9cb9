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
    Watch,
    arrange_parameters,
    context_of,
    fold_constants,
    keep_few,
    of_programs,
    repeat,
    rewrite,
    rewrite_by_choice,
    rewrite_by_cost,
    rewrite_by_options,
    rewrite_for_target,
    rewrite_if_for_target,
    specialise_parameters,
    stack,
    with_context,
)
from monotile.passes.table import Pass, Trace, capability, checked, option, run
from monotile.plan.nodes import Plan
from monotile.schedule.concatenations import read_parts
from monotile.schedule.gathered_lines import copy_lines
from monotile.schedule.jam_loops import jam_loops
from monotile.schedule.list_rows import list_rows
from monotile.schedule.live import bound
from monotile.schedule.odd_rows import pad_odd_rows
from monotile.schedule.rotate import rotate_loops
from monotile.schedule.rounded_copies import copy_rounded
from monotile.schedule.split import split_reductions
from monotile.schedule.split_axes import split_streamed_axes
from monotile.schedule.split_keys import split_keys
from monotile.schedule.split_long import split_long_reductions
from monotile.targets.target import Target
from monotile.transform.fusion.horizontal import fuse_horizontally
from monotile.transform.fusion.inline import inline_pointwise, inline_views
from monotile.transform.fusion.inline_decoding import inline_decoding
from monotile.transform.iterate import Iterate
from monotile.transform.layout.align_axes import align_axes
from monotile.transform.layout.channels_last import assign_layouts
from monotile.transform.layout.group_rows import group_rows
from monotile.transform.layout.images import make_images
from monotile.transform.layout.interleaved_sums import order_sums
from monotile.transform.layout.join_reductions import join_reductions
from monotile.transform.layout.merge_axes import merge_axes
from monotile.transform.layout.pad_channels import pad_channels
from monotile.transform.layout.pad_outputs import pad_outputs
from monotile.transform.layout.pad_slices import pad_slices
from monotile.transform.layout.part_axes import part_axes
from monotile.transform.layout.reindex import reindex_reductions
from monotile.transform.layout.split_slices import split_slices
from monotile.transform.legalise.base_copies import insert_base_copies
from monotile.transform.legalise.copy_insertion import insert_copies
from monotile.transform.legalise.mask_stacks import mask_stacks
from monotile.transform.legalise.narrow_products import narrow_products
from monotile.transform.legalise.round_factors import round_factors
from monotile.transform.legalise.state_copies import insert_state_copies
from monotile.transform.roll.distribute import distribute
from monotile.transform.roll.reroll_selects import reroll_selects
from monotile.transform.roll.roll import roll
from monotile.transform.roll.skew import skew
from monotile.transform.roll.update_tables import update_tables
from monotile.transform.simplify.appended_terms import separate_terms
from monotile.transform.simplify.copy_propagation import propagate_copies
from monotile.transform.simplify.crop import crop
from monotile.transform.simplify.dce import eliminate_dead_code
from monotile.transform.simplify.equal_elements import share_equal
from monotile.transform.simplify.reassociate import reassociate
from monotile.transform.simplify.shorten import shorten_reductions
from monotile.transform.simplify.simplify import simplify
from monotile.transform.sparse.list_nonzeros import list_nonzeros

ROLLING = option("roll")
SPECIALISING = option("specialise")
ARRANGING = option("arrange_parameters")
EXACTER = option("excess_precision")
LAYOUTS = capability("layouts")
WIDE_COPIES = capability("wide_copies")
COALESCING = capability("coalescing")
MANY_WORKERS = capability("many_workers")
LOCKSTEP = capability("lockstep")
MESSAGES = capability("messages")
SCRATCHPAD = capability("scratchpad")
PREFETCH = capability("prefetch")

# fmt: off
ANY_TARGET: tuple[Pass[ProgramState], ...] = (
    Pass("mask_stacks", rewrite(mask_stacks),
         "Before inlining: the masks of stacks are pointwise, and their readers may take them in.", sets=("stacks masked",)),
    Pass("list_nonzeros", rewrite(list_nonzeros),
         "First, while what is stated of zeros is a statement of its own, which inlining takes in. Layers go along lists alike, and roll.", sets=("masks listed",)),
    Pass("inline_views", rewrite(inline_views),
         "Views between operators hide that layers are equal.", needs=("stacks masked",), sets=("views inlined",)),
    Pass("eliminate_dead_code", rewrite(eliminate_dead_code),
         "Inlined views that nobody reads any more would interrupt repeated sequences.", needs=("views inlined",)),
    Pass("simplify", rewrite_by_options(simplify),
         "In canonical form, equal layers have equal expressions.", needs=("views inlined",), sets=("simplified",)),
    Pass("shorten_reductions", rewrite(shorten_reductions),
         "Comparisons are canonical, and views inlined. Before layers are rolled and siblings fused: a bag of one is no reduction.",
         needs=("views inlined", "simplified"), sets=("reductions shortened",)),
    Pass("crop", rewrite(crop),
         "Before layers are rolled, of which the last may be read in part. Views are inlined, and indices canonical.", needs=("views inlined", "simplified"), sets=("cropped",)),
    Pass("separate_terms", rewrite(separate_terms),
         "After cropping, which leaves out the shares that nobody reads. Before layers are rolled and exponentials inlined.",
         needs=("views inlined", "cropped"), sets=("terms separated",), where=(EXACTER,)),
    Pass("specialise", specialise_parameters,
         "Before rolling: what is zero differs from layer to layer. Views are inlined, so that an index says what a dimension consists of.",
         needs=("views inlined", "simplified"), sets=("specialised",), where=(SPECIALISING,)),
    Pass("gather_kept", keep_few,
         "Before weights are decoded where they are read: what few rows multiply is gathered instead. Comparisons are canonical.",
         needs=("views inlined", "simplified"), sets=("kept gathered",)),
    Pass("inline_decoding", rewrite(inline_decoding),
         "Before layers are rolled and siblings fused: a layer of codes is then one statement, as one of weights is.",
         needs=("views inlined", "simplified"), sets=("decoding inlined",)),
    Pass("roll", rewrite_by_choice(roll),
         "Repeats are found by structure: views are inlined and expressions canonical.",
         needs=("views inlined", "simplified"), sets=("rolled",), after=("specialised",), where=(ROLLING,)),
    Pass("reroll_selects", rewrite(reroll_selects),
         "After rolling, the branches of a stack are slices of one tensor, and the stack is a view of it.", needs=("rolled",), where=(ROLLING,)),
    Pass("skew", rewrite_if_for_target(skew),
         "Layers and time steps are a perfect nest once both loops are rolled and no stack stands between them.", needs=("rolled",), sets=("skewed",), where=(ROLLING,)),
    Pass("distribute", rewrite(distribute),
         "What is left of nests. Before siblings are fused: a product in front of a loop is no sibling of one inside.", needs=("views inlined",), sets=("loops distributed",), after=("rolled", "skewed")),
    Pass("fold", fold_constants,
         "After rolling: the zeros that a recurrence starts from must still have the structure of its state.",
         needs=("simplified",), sets=("constants folded",), after=("rolled",)),
    Pass("share_equal", rewrite(share_equal),
         "After rolling, as folding: a state of zeros begins with equal elements.", needs=("simplified",), sets=("equal elements shared",), after=("rolled",)),
    Pass("fuse_horizontally", rewrite(fuse_horizontally),
         "After rolling: the siblings of a layer are fused once, for all layers.",
         needs=("simplified",), sets=("siblings fused",), after=("rolled", "skewed", "loops distributed")),
    Pass("reroll_selects_again", rewrite(reroll_selects),
         "Stacks of fused siblings are slices of one tensor now.", needs=("siblings fused",)),
    Pass("inline_views_again", rewrite(inline_views),
         "Those slices are views, which can be inlined.", needs=("siblings fused",)),
    Pass("inline_pointwise", rewrite(inline_pointwise),
         "After horizontal fusion, which matches siblings as separate statements.",
         needs=("views inlined", "siblings fused"), sets=("pointwise inlined",)),
    Pass("simplify_again", rewrite_by_options(simplify),
         "Inlining has brought together expressions that simplify each other.", needs=("pointwise inlined",)),
    Pass("reassociate", rewrite(reassociate),
         "After inlining, which brings products next to each other; in loops, so once for all layers.",
         needs=("pointwise inlined",), sets=("products reassociated",), after=("rolled",)),
    Pass("merge_axes", rewrite(merge_axes),
         "After inlining, which leaves what is stored; before axes are aligned.", needs=("pointwise inlined",)),
    Pass("part_axes", rewrite(part_axes),
         "As for axes that are merged, of which it may leave some apart.", needs=("pointwise inlined",)),
    Pass("split_slices", rewrite(split_slices),
         "Before axes are aligned: only then is it settled who reads a product. After rolling, which compares products as they are.",
         needs=("pointwise inlined",)),
    Pass("align_axes", rewrite(align_axes),
         "The pointwise readers that were not inlined become epilogues: their producers take over their axis order.",
         needs=("pointwise inlined",), sets=("axes aligned",)),
    Pass("reindex_reductions", rewrite(reindex_reductions),
         "For readers that differ by a reshape, not only by an order of axes.", needs=("axes aligned",)),
    Pass("join_reductions", rewrite(join_reductions), "Once it is settled in what order a product's operands lie, and before layouts are chosen for what it reads.",
         needs=("axes aligned",)),
    Pass("propagate_copies", rewrite(propagate_copies),
         "After the last inlining: the copies that are left are read as whole tensors, and so can their sources be.",
         needs=("pointwise inlined",), sets=("copies forwarded",)),
    Pass("eliminate_dead_code_again", rewrite(eliminate_dead_code),
         "Propagated copies, and weights that folding has replaced, are dead.",
         needs=("copies forwarded", "constants folded"), sets=("dead code removed",)),
    Pass("update_tables", rewrite(update_tables),
         "After rolling and inlining: the rows of a stack of new states are read by nobody else by then, if at all.",
         needs=("dead code removed",), sets=("tables updated",), after=("rolled",), where=(ROLLING,)),
    Pass("iterate", repeat,
         "After rolling: the states of layers are tables by then, which a loop over the whole Program carries as they are.",
         needs=("dead code removed",), sets=("iterated",), after=("tables updated",)),
    Pass("insert_copies", rewrite(insert_copies),
         "Legalisation comes after copy propagation, which would remove the inserted copies.",
         needs=("copies forwarded", "dead code removed"), sets=("own buffers",), after=("tables updated", "iterated")),
    Pass("insert_state_copies", rewrite(insert_state_copies),
         "A state has one writer only if every result has a buffer of its own.",
         needs=("own buffers",), sets=("one writer a state",)),
    Pass("insert_base_copies", rewrite(insert_base_copies),
         "A Scatter may update a state's old value in place only if the state has no other writer.",
         needs=("own buffers", "one writer a state"), sets=("own bases",)),
)
AT_THE_BORDER: tuple[Pass[ProgramState], ...] = (
    Pass("stack_results", stack,
         "After legalisation: what is read is then not updated in place, so a tensor that is read may become a result.",
         needs=("own bases",), sets=("results settled",)),
    Pass("arrange_parameters", arrange_parameters,
         "Before layout assignment, which would transpose the parameters in every call.",
         needs=("own bases",), sets=("parameters arranged",), where=(ARRANGING,)),
)
FOR_TARGET: tuple[Pass[ProgramState], ...] = (
    Pass("narrow_products", rewrite_for_target(narrow_products),
         "Before layout assignment, which looks at products. After inlining, which makes a sum of products of what was multiplied before.",
         needs=("own bases", "pointwise inlined"), sets=("narrow types multiplied",)),
    Pass("group_rows", rewrite(group_rows),
         "Before layout assignment, which looks at products. After inlining, which would put rows back where they came from.",
         needs=("own bases",), sets=("rows grouped",), after=("parameters arranged",)),
    Pass("pad_channels", rewrite_for_target(pad_channels),
         "Before layout assignment: four input channels can be read as vectors, three cannot.",
         needs=("own bases",), sets=("channels padded",), after=("parameters arranged", "rows grouped"), where=(WIDE_COPIES,)),
    Pass("pad_outputs", rewrite(pad_outputs),
         "Before layout assignment, as the padding of inputs.",
         needs=("own bases",), sets=("outputs padded",), after=("parameters arranged", "rows grouped")),
    Pass("assign_layouts", rewrite_for_target(assign_layouts),
         "Before tiling: which tiles a product may have depends on the layouts of its operands.",
         needs=("own bases",), sets=("layouts chosen",), after=("parameters arranged", "channels padded", "outputs padded"), where=(LAYOUTS,)),
    Pass("order_sums", rewrite(order_sums), "After layouts, by which activations lie in another order than weights. Before sums are split.",
         needs=("own bases",), sets=("sums in order",), after=("layouts chosen",), where=(WIDE_COPIES,)),
    Pass("make_images", rewrite_for_target(make_images),
         "After layouts, of which images have theirs. After inlining, which would take them in again.",
         needs=("own bases", "pointwise inlined"), sets=("images made",), after=("layouts chosen",)),
    Pass("pad_slices", rewrite_for_target(pad_slices),
         "After layouts, by which columns are last. Before rows are padded, which leaves odd slices of a row.",
         needs=("own bases", "pointwise inlined"), sets=("slices padded",), after=("layouts chosen",), where=(WIDE_COPIES,)),
    Pass("round_factors", rewrite_for_target(round_factors),
         "After layouts: copies in another order round what they copy.",
         needs=("own bases",), sets=("factors rounded",), after=("layouts chosen",)),
    Pass("context", with_context,
         "Later passes ask the cost model, whose results the context keeps.",
         needs=("own bases",), sets=("context",), after=("layouts chosen",)),
    Pass("copy_rounded", rewrite_by_cost(copy_rounded),
         "By cost, tensor by tensor; before concatenations are read in parts, which rounded ones are not.",
         needs=("context", "factors rounded"), sets=("factors copied",), after=("layouts chosen",), where=(LOCKSTEP,)),
    Pass("list_rows", rewrite_by_cost(list_rows),
         "Before rows are padded: what reads a scattered sum is its epilogue from here on. Terms are added before they are rounded.",
         needs=("context", "pointwise inlined"), sets=("rows listed",), after=("layouts chosen",), where=(LOCKSTEP, EXACTER)),
    Pass("read_parts", rewrite_by_cost(read_parts),
         "After layouts, by which parts are whole vectors; after rounding, which concatenations do for what they copy.",
         needs=("context", "factors rounded"), sets=("parts read",), after=("layouts chosen",), where=(LOCKSTEP,)),
    Pass("copy_lines", rewrite_by_cost(copy_lines),
         "After inlining, which would take the copy in again; before bounds, which statements of later passes would lack.",
         needs=("context", "pointwise inlined"), sets=("lines copied",), after=("layouts chosen",), where=(LOCKSTEP,)),
    Pass("pad_rows", rewrite_by_cost(pad_odd_rows),
         "After layouts, which decide along what a product reads. Before bounds, which statements of later passes would lack. By cost.",
         needs=("context", "pointwise inlined"), sets=("rows padded",), after=("layouts chosen", "lines copied"), where=(WIDE_COPIES,)),
    Pass("split_axes", rewrite_by_cost(split_streamed_axes),
         "After inlining: what reads a product at a distance (rotary embeddings) is one statement with what follows. By cost.",
         needs=("context", "pointwise inlined"), sets=("axes split",), after=("layouts chosen",), where=(SCRATCHPAD,)),
    Pass("split_keys", rewrite_by_cost(split_keys),
         "Before bounds: keys that are split have bounds of their own. By cost, as split-K.",
         needs=("context",), sets=("keys split",), after=("layouts chosen", "axes split"), where=(MANY_WORKERS, LOCKSTEP)),
    Pass("bound_live", rewrite_by_cost(bound),
         "As late as it can be: only passes behind it carry the bounds. Before split-K, which leaves bounded sums as they are.",
         needs=("context",), sets=("bounds",), after=("layouts chosen", "keys split")),
    Pass("split_long", rewrite_by_cost(split_long_reductions),
         "Before split-K, which leaves what has parts alone. By cost, which depends on all layouts.",
         needs=("context", "bounds"), sets=("long reductions split",), after=("layouts chosen",)),
    Pass("split_reductions", rewrite_by_cost(split_reductions),
         "Split-K compares whole schedules by the cost model, which depends on all layouts.",
         needs=("context", "bounds"), sets=("reductions split",), after=("layouts chosen",), where=(MANY_WORKERS,)),
    Pass("rotate_loops", rewrite_by_cost(rotate_loops),
         "After split-K: whether a rotation saves a stage depends on the splits; the rotated loop is split again.",
         needs=("context",), sets=("loops rotated",), after=("reductions split",)),
    Pass("jam_loops", rewrite_by_cost(jam_loops),
         "After rotation and split-K, which settle what an iteration of each loop is. By cost, that of stages side by side.",
         needs=("context",), sets=("loops jammed",), after=("skewed", "loops rotated"), where=(MANY_WORKERS,)),
)
PROGRAMS = checked((*ANY_TARGET, *AT_THE_BORDER, *FOR_TARGET))

PLANS: tuple[Pass[PlanState], ...] = checked((
    Pass("group_and_cut", plans.group_and_cut,
         "All later passes work on stages and their tasks.",
         needs=("own buffers", "own bases", "context"), sets=("stages",), after=("reductions split", "loops rotated", "loops jammed")),
    Pass("streams_first", plans.order,
         "Before stages share workers: it brings those side by side that wait for the same hand-off.",
         needs=("stages",), sets=("order",), where=(SCRATCHPAD,)),
    Pass("decisions_first", plans.decide_first,
         "Before stages share workers, as above: what all workers wait for is made beside what an iteration begins with.",
         needs=("stages",), sets=("decisions",), after=("order",)),
    Pass("share_workers", plans.share,
         "Before memory: the tiles of a stage determine what its tasks keep on chip.",
         needs=("stages",), sets=("workers shared",), after=("order", "decisions"), where=(MANY_WORKERS,)),
    Pass("place_tensors", plans.place_tensors,
         "Live ranges follow from the order of the stages, which is final.",
         needs=("stages",), sets=("places",), after=("workers shared",)),
    Pass("list_stages", plans.list_stages, "Tiles are final: later passes change single fields of the Plan's nodes.",
         needs=("stages",), sets=("nodes",), after=("workers shared",)),
    Pass("one_pass", plans.one_pass,
         "Before anything is laid out beside what stages have on chip: a step of two sums needs more there.",
         needs=("nodes", "places"), sets=("one pass",), where=(COALESCING,)),
    Pass("bound_walks", plans.bound_walks,
         "Before hand-offs, and before methods are settled: how far a walk goes decides what a thread has at once.",
         needs=("nodes",), sets=("walks bounded",), after=("one pass",)),
    Pass("spread_copies", plans.spread_copies,
         "Before hand-offs: the number of tasks determines on which workers a stage runs.",
         needs=("nodes",), sets=("copies spread",), where=(COALESCING,)),
    Pass("replicate_results", plans.replicate_results,
         "Before hand-offs: what a worker makes for itself it hands to nobody.",
         needs=("nodes", "places"), sets=("results replicated",), after=("copies spread",), where=(SCRATCHPAD,)),
    Pass("decide_everywhere", plans.decide_everywhere,
         "Before hand-offs, as above. Behind what streamed products read, which is larger and lies on chip for a time only.",
         needs=("nodes", "places"), sets=("decisions replicated",), after=("results replicated",), where=(SCRATCHPAD,)),
    Pass("messages", plans.messages,
         "Before hand-offs: loops with messages have no grid barriers inside.",
         needs=("nodes", "places"), sets=("messages",), after=("copies spread",), where=(MESSAGES,)),
    Pass("reserve_ring", plans.reserve_ring,
         "It takes what on-chip memory stages and messages leave.",
         needs=("nodes",), sets=("ring",), after=("results replicated", "decisions replicated", "messages"), where=(SCRATCHPAD,)),
    Pass("alternate_scalars", plans.alternate_scalars,
         "Right before hand-offs, which it counts. Messages and what is replicated have their places by then.",
         needs=("nodes", "places"), sets=("scalars alternate",), after=("decisions replicated", "messages", "copies spread", "walks bounded")),
    Pass("hand_offs", plans.hand_offs,
         "Dependences between workers follow from tasks and places, which are final.",
         needs=("nodes", "places"), sets=("hand-offs",), after=("copies spread", "messages", "walks bounded", "scalars alternate")),
    Pass("pin_weights", plans.pin_weights,
         "Pinned weights get the on-chip memory that stages and messages leave.",
         needs=("nodes",), sets=("weights pinned",), after=("messages",), where=(SCRATCHPAD,)),
    Pass("messages_or_weights", plans.messages_or_weights,
         "Only now is it known how many weights could be pinned in the memory that messages take.",
         needs=("messages", "hand-offs", "weights pinned"), sets=("messages settled",), where=(MESSAGES, SCRATCHPAD)),
    Pass("settle_methods", plans.settle_methods,
         "How many loads a thread has in flight depends on which of them read on-chip memory, which is final now; what stays in a cache, on the tasks.",
         needs=("nodes", "places"), sets=("methods settled",), after=("weights pinned", "messages settled")),
    Pass("hold_in_registers", plans.hold_in_registers, "Which weights are pinned is final; some of them fit in registers.",
         needs=("weights pinned",), sets=("registers",), after=("messages settled", "methods settled"), where=(SCRATCHPAD,)),
    Pass("prefetch", plans.load_ahead,
         "Only a stage behind a grid barrier can wait late, and pinned weights are not prefetched.",
         needs=("hand-offs",), sets=("prefetches",), after=("weights pinned", "messages settled", "methods settled"), where=(PREFETCH,)),
    Pass("assign_threads", plans.assign_threads,
         "A step's prefetches and its loads belong to the same threads, so prefetches come first.",
         needs=("methods settled",), sets=("threads assigned",), after=("prefetches",), where=(LOCKSTEP,)),
    Pass("bound_tasks", plans.bound_tasks,
         "Tasks, places and messages are final. Hand-offs hold for fewer tasks too: none relies on which worker has which of several.",
         needs=("places", "hand-offs"), sets=("tasks bounded",), after=("messages settled",)),
    Pass("launch", plans.launch, "All sizes of the launch are known.",
         needs=("places", "hand-offs"), sets=("plan",), after=("messages settled", "registers", "prefetches", "threads assigned")),
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


def transform(
    program: Program,
    constants: Constants,
    options: Options,
    watch: Watch | None = None,
    chooser: Chooser = MODEL,
    iterate: Iterate | None = None,
) -> tuple[Program, Constants]:
    """The passes for any target alone: the Program, and the constants with those that folding made. watch: is given the name and the product of
    each pass; the others: as in ProgramState."""
    first = ProgramState(program, options, constants=constants, chooser=chooser, iterate=iterate)
    done = run(ANY_TARGET, first, of_programs(watch))
    return done.program, done.constants


def for_target(
    program: Program, target: Target, watch: Watch | None = None, chooser: Chooser = MODEL
) -> tuple[Program, Context]:
    """The passes for one target alone: the Program as `schedule` takes it, and what is known by then about how it may be cut."""
    first = ProgramState(program, Options(), target, chooser=chooser)
    done = run(FOR_TARGET, first, of_programs(watch))
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
