"""The tree of stages: loops and branches nested, stages in order. Grouping builds it; memory, placement and hand-offs are computed from
it."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from monotile.analysis.in_place import tables_of
from monotile.analysis.states import may_share, overwritten_by, waits
from monotile.analysis.uses import mentioned
from monotile.choice.digest import digest_program, digest_statements
from monotile.errors import ScheduleError
from monotile.ir.program import Branch, Loop, Program, Statement, wholes
from monotile.kernels.draft import Context, Draft
from monotile.kernels.group import Group
from monotile.kernels.transpose.match import goes_through_tiles
from monotile.plan.streams import streams
from monotile.schedule.groups import Node, fuse_epilogues, merge, singles, unite, with_epilogue
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
TRIPS = 16  # iterations that the cost model assumes for a loop that may end early


def build(program: Program, context: Context) -> Tree:
    """Groups the statements into stages and cuts every stage into tasks. Memoised for each Program: passes compare candidates with the
    Program that they have kept, and later passes begin with that."""
    return context.memo.once(
        ("built", program), lambda: _Building(program, context).level(program.body)
    )


class _Building:
    """Builds the tree of a Program. Candidates share most of their loops and statements, so results for each are kept in the context."""

    def __init__(self, program: Program, context: Context) -> None:
        self._program, self._context = program, context
        self._given = {t.name for t in program.inputs} | {w.tensor.name for w in program.weights}
        self._changing, self._waits = program.changing, waits(program)
        self._overwritten, self._tables = overwritten_by(program), tables_of(program)
        # Everything that a level depends on besides its own statements.
        self._around = (
            self._changing,
            *(frozenset(x.items()) for x in (self._waits, self._overwritten)),
            program.weights,
        )

    def level(self, body: tuple[Statement, ...], own: Loop | Branch | None = None) -> Tree:
        """own: the loop or branch whose body `body` is; None: the Program."""
        if own is None:
            return self._level(body, None)
        key = ("level", own, body, self._around)
        return self._context.memo.once(key, lambda: self._level(body, own))

    def _level(self, body: tuple[Statement, ...], own: Loop | Branch | None) -> Tree:
        def allowed(g: Group) -> bool:
            # A stage that waits for the host's memory delays no other.
            return not g.reads & self._changing and may_share(
                g.steps, self._overwritten, self._tables
            )

        def join(first: Group, second: Group) -> Group | None:
            near = own is None and self._beside(first, second)
            return self._joined(first, second, allowed, near)

        once = self._context.of_worker.once
        nodes = [
            n if isinstance(n, Loop | Branch) else once(("same", n), lambda n=n: n)
            for n in singles(body, self._waits)
        ]

        def together(first: Group, second: Group) -> Group | None:
            both = once(("epilogue", first, second), lambda: with_epilogue(first, second))
            if both is None or not goes_through_tiles(first.steps[0][0]):
                return both
            return both if self._faster(first, second, both, near=False) else None

        nodes = fuse_epilogues(nodes, allowed, self._waits, together)
        uses = self._uses(body, own)
        nodes = join_matches(nodes, uses, self._context, self._waits, join, own)
        return tuple(map(self._node, merge(nodes, join, self._waits)))

    def _joined(
        self, first: Group, second: Group, allowed: Callable[[Group], bool], near: bool
    ) -> Group | None:
        """One stage instead of two where the cost model predicts that it is faster than two and a barrier. near: no barrier is saved."""
        context = self._context
        both = context.of_worker.once(
            ("unite", first, second),
            lambda: unite(first, second, leads=context.target.has.halos),
        )
        if both is None or not allowed(both):
            return None
        key = ("one stage", first, second, near)
        faster = context.memo.once(key, lambda: self._faster(first, second, both, near))
        return both if faster else None

    def _faster(self, first: Group, second: Group, both: Group, near: bool) -> bool:
        """Whether one stage is faster than two."""
        context = self._context
        a, b = cut(first, context), cut(second, context)
        if a is None or b is None:
            return False
        apart = a.seconds + b.seconds + (0.0 if near else context.target.barrier_seconds)
        one = cut(both, context, within=apart)
        if one is None:
            return False
        return context.whether(
            "one stage",
            lambda yes: one.seconds if yes else apart,
            shape=lambda: digest_groups(context, first, second, more=near),
        )

    def _beside(self, first: Group, second: Group) -> bool:
        """Whether `first` waits for nothing while `second` has other dependences too: then `first` costs no extra barrier. In a loop it
        would take its time in every iteration."""
        waiting = not second.reads - first.tensors <= self._given
        return waiting and first.reads <= self._given

    def _uses(self, body: tuple[Statement, ...], own: Loop | Branch | None) -> Counter[str]:
        """How often each tensor that `body` defines is read, by `body` and by its results."""
        found = Counter(t.name for t in (self._program.outputs if own is None else wholes(own)))
        for s in body:
            found.update(
                self._context.of_worker.once(("mentioned", s), lambda s=s: mentioned((s,)))
            )
        return found

    def _node(self, n: Node) -> Draft | Nest | Fork:
        if isinstance(n, Loop):
            return Nest(n, self.level(n.body, n))
        if isinstance(n, Branch):
            return Fork(n, *(self.level(side, n) for side in (n.then, n.otherwise)))
        found = cut(n, self._context)
        if found is None:
            names = ", ".join(sorted(n.tensors))
            target = self._context.target.name
            raise ScheduleError(f"no way to compute {names} fits the memory of {target}")
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
    """How many iterations the cost model assumes."""
    return min(loop.axis.extent, TRIPS) if loop.ends_early else loop.axis.extent


def seconds(tree: Tree, target: Target) -> float:
    """The cost model's estimate for all stages, with a grid barrier before each; for a Branch, of the longer side. None where streamed
    products read what a one-task stage before them computes: every worker can compute that for itself (`replicas.py`)."""
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
    """`after` if the cost model predicts a faster whole schedule with it, else `before`. about: the statements of `before` in question.
    cost: seconds with it and without, where they are not the sums of their stages.
    """

    def in_turn(way: bool) -> float:
        return seconds(build(after if way else before, context), context.target)

    taken = context.whether(
        kind,
        cost or in_turn,
        shape=lambda: digest_statements(about, context.tables),
        around=lambda: digest_program(before, 0),
    )
    return after if taken else before
