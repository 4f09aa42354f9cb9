"""Joins independent loops of equal extent into one (`transform/roll/jam.py`), where the cost model predicts a faster schedule."""

from collections.abc import Mapping

from monotile.analysis.states import steady_weights
from monotile.ir.program import Compute, Loop, Program, Scatter, statements
from monotile.kernels.draft import Context, Draft
from monotile.kernels.registry import family_of
from monotile.schedule.sharing import of_run, runs, seconds_shared, share_workers
from monotile.schedule.tree import Tree, build, faster, nests_of
from monotile.targets.target import Target
from monotile.transform.roll.jam import Pair, jam, jammable


def jam_loops(program: Program, target: Target, context: Context) -> Program:
    """`program` with such loops joined. Stages of both loops share the workers, and an iteration has one hand-off for both."""
    tried: set[tuple[str, str]] = set()
    while pair := next((p for p in jammable(program) if _names(p) not in tried), None):
        tried.add(_names(pair))
        jammed = jam(program, pair)
        trees = {one: _shared(p, context) for one, p in ((False, program), (True, jammed))}
        if not _keeps(trees[False], trees[True], pair, program, target):
            continue

        def cost(one: bool, trees: Mapping[bool, Tree] = trees) -> float:
            return seconds_shared(trees[one], target)

        program = faster("jam loops", program, jammed, pair, context, cost)
    return program


def _names(pair: Pair) -> tuple[str, str]:
    first, second = pair
    return first.axis.name, second.axis.name


def _shared(program: Program, context: Context) -> Tree:
    return share_workers(build(program, context), context)


def _keeps(apart: Tree, one: Tree, pair: Pair, program: Program, target: Target) -> bool:
    """Whether a worker can still keep on chip all weights that it could keep through each of the loops. After joining, each loop has
    fewer workers, so each worker has more of the weights. Reading them again in every iteration takes longer than the hand-off that
    is saved, and the cost model does not know pinned weights."""
    computes = {s.out.name: s for s in statements(program.body) if isinstance(s, Compute | Scatter)}
    weights = steady_weights(program)

    def of_stage(d: Draft) -> float:
        found = (family_of(s.method).pinnable(s, computes, weights, target) for s in d.steps)
        return sum(p.nbytes for pinned in found for p in pinned)

    def of_loop(tree: Tree, loop: Loop) -> float:
        (body,) = (n.body for n in nests_of(tree) if n.loop.axis == loop.axis)
        return sum(of_run(run, of_stage, target) for run in runs(body) if isinstance(run, list))

    first, second = pair
    before = max(of_loop(apart, first), of_loop(apart, second))
    return of_loop(one, first) <= target.shared_bytes or before > target.shared_bytes
