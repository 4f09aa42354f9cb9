"""The stages in order, loops nested: what grouping gives and memory, placement and hand-offs work on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from monotile.analysis.states import may_share, waits
from monotile.choice.digest import digest_program, digest_statements
from monotile.errors import ScheduleError
from monotile.ir.program import Branch, Loop, Program, Statement
from monotile.kernels.draft import Context, Draft
from monotile.kernels.group import Group
from monotile.plan.streams import streams
from monotile.schedule.groups import Node, fuse_epilogues, merge, singles, unite
from monotile.schedule.keys import digest_groups
from monotile.schedule.matches import join_matches
from monotile.schedule.tiles import cut
from monotile.targets.target import Target


@dataclass(frozen=True, slots=True)
class Nest:
    """A Loop and the stages of its body."""

    loop: Loop
    body: "Tree"


@dataclass(frozen=True, slots=True)
class Fork:
    """A Branch and the stages of its two sides."""

    branch: Branch
    then: "Tree"
    otherwise: "Tree"

    @property
    def sides(self) -> "tuple[Tree, Tree]":
        return self.then, self.otherwise


Tree = tuple[Draft | Nest | Fork, ...]
TRIPS = 16  # iterations that the cost model counts of a loop that may end early


def build(program: Program, context: Context) -> Tree:
    """Group the statements into stages and cut every stage into tasks."""
    return _level(program.body, context, program)


def _level(body: tuple[Statement, ...], context: Context, program: Program) -> Tree:
    given = {t.name for t in program.inputs} | {w.tensor.name for w in program.weights}
    changing = program.changing

    def join(first: Group, second: Group) -> Group | None:
        """One stage instead of two where the model says that it is faster than two and a barrier."""
        both = context.of_worker.once(
            ("unite", first, second),
            lambda: unite(first, second, leads=context.target.has.halos),
        )
        if both is None or not allowed(both):
            return None
        a, b = cut(first, context), cut(second, context)
        if a is None or b is None:
            return None
        near = beside(first, second)
        apart = a.seconds + b.seconds + (0.0 if near else context.target.barrier_seconds)
        one = cut(both, context, within=apart)
        if one is None:
            return None
        together = context.whether(
            "one stage",
            lambda yes: one.seconds if yes else apart,
            shape=lambda: digest_groups(context, first, second, more=near),
        )
        return both if together else None

    def beside(first: Group, second: Group) -> bool:
        """Whether `first` waits for nothing while `second` waits for others as well: it costs no barrier of its own. In a loop it would
        take its time in every iteration."""
        waits = not second.reads - first.tensors <= given
        return body is program.body and waits and first.reads <= given

    def allowed(g: Group) -> bool:
        if g.reads & changing:  # whoever waits for the host's memory keeps no one waiting
            return False
        return may_share(g.steps, program)

    before = waits(program)
    nodes = fuse_epilogues(singles(body, before), allowed, before)
    nodes = join_matches(nodes, program, context, before, join)
    nodes = merge(nodes, join, before)
    return tuple(_node(n, context, program) for n in nodes)


def _node(n: Node, context: Context, program: Program) -> Draft | Nest | Fork:
    if isinstance(n, Loop):
        return Nest(n, _level(n.body, context, program))
    if isinstance(n, Branch):
        return Fork(n, *(_level(side, context, program) for side in (n.then, n.otherwise)))
    found = cut(n, context)
    if found is None:
        names = ", ".join(sorted(n.tensors))
        raise ScheduleError(f"no way to compute {names} fits the memory of {context.target.name}")
    return found


def drafts_of(tree: Tree) -> Iterator[Draft]:
    for node in tree:
        match node:
            case Draft():
                yield node
            case Nest():
                yield from drafts_of(node.body)
            case Fork(_, then, otherwise):
                yield from drafts_of((*then, *otherwise))


def nests_of(tree: Tree) -> Iterator[Nest]:
    """Every loop, outer ones after those inside."""
    for node in tree:
        match node:
            case Draft():
                pass
            case Nest(_, body):
                yield from nests_of(body)
                yield node
            case Fork(_, then, otherwise):
                yield from nests_of((*then, *otherwise))


def trips(loop: Loop) -> int:
    """How many iterations the cost model counts."""
    return min(loop.axis.extent, TRIPS) if loop.ends_early else loop.axis.extent


def seconds(tree: Tree, target: Target) -> float:
    """The cost model's guess for all stages, a grid barrier before each; of a Branch for the longer side. None where streamed products read what
    a stage of one task before them makes: every worker can make that for itself (`replicas.py`)."""
    total, near = 0.0, frozenset[str]()
    for node in tree:
        match node:
            case Draft():
                streaming = any(map(streams, node.steps))
                own = streaming and bool(node.group.reads & near)
                total += node.seconds + (0.0 if own else target.barrier_seconds)
                if not streaming and node.tasks == 1:
                    near |= node.group.tensors
            case Nest():
                total += trips(node.loop) * seconds(node.body, target)
            case Fork():
                total += max(seconds(side, target) for side in node.sides)
    return total


def faster(
    kind: str,
    before: Program,
    after: Program,
    about: Sequence[Statement],
    context: Context,
    cost: Callable[[bool], float] | None = None,
) -> Program:
    """`after` if the whole schedule is faster with it by the cost model, else `before`. about: the statements of `before` in question. cost: seconds with it
    or without, where they are not those of one stage after the other."""

    def in_turn(way: bool) -> float:
        return seconds(build(after if way else before, context), context.target)

    taken = context.whether(
        kind,
        cost or in_turn,
        shape=lambda: digest_statements(about, context.tables),
        around=lambda: digest_program(before, 0),
    )
    return after if taken else before
