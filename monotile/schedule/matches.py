"""Makes one group of the statements that a kernel family computes as a whole (attention, for example), where no other statement reads
the intermediate results."""

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from monotile.analysis.states import Waits
from monotile.ir.expr import axes_of
from monotile.ir.program import Branch, Compute, Loop
from monotile.kernels.draft import Context
from monotile.kernels.family import Match
from monotile.kernels.group import Group
from monotile.kernels.registry import match
from monotile.schedule.groups import Join, Node, merge, needs_of, unite
from monotile.schedule.keys import digest_groups
from monotile.schedule.tiles import cut


def join_matches(
    nodes: list[Node],
    uses: Mapping[str, int],
    context: Context,
    waits: Waits,
    join: Join,
    around: Loop | Branch | None = None,
) -> list[Node]:
    """`nodes` with the statements that families match in one group, if such a group can be cut into tasks. Unless the match is known to
    be faster, the cost model compares it with separate stages, as `join` would make them. uses: how often each of their tensors is
    read. around: the loop or branch whose body they are."""
    computes = {
        s.out.name: s
        for node in nodes
        if isinstance(node, Group) and len(node.steps) == 1
        for s in node.steps[0]
        if isinstance(s, Compute)
    }
    level = _Level(list(nodes), join, waits)
    for node in list(nodes):
        if not isinstance(node, Group) or len(node.steps) != 1:
            continue
        result = node.steps[0][0]
        found = match(result, computes, context) if isinstance(result, Compute) else None
        if found is None:
            continue
        inner = {s.out.name for s in found.inner}
        parts = [n for n in nodes if isinstance(n, Group) and n.tensors & inner]
        made = {name for n in parts for name in n.tensors}
        assert isinstance(result, Compute)
        if made != inner or not found.closed(result, uses):
            continue
        own = set(map(id, parts))
        before = itertools.takewhile(lambda n, node=node: n is not node, nodes)
        kept = found.kept | made
        if any(needs_of(n, waits) & kept for n in before if id(n) not in own):
            continue
        whole = _whole(found, node, parts)
        if whole is None or cut(whole, context) is None:
            continue
        shape = functools.partial(digest_groups, context, whole)
        costs, apart, together = {True: 0.0, False: 0.0}, list[Group](), list[Group]()
        if not found.faster:
            apart = level.stages(whole, (*parts, node))
            if len(apart) == 1 and _repeats(found, around):
                continue
            together = [whole, *level.rest(apart, whole)]
            costs = {True: _seconds(together, context), False: _seconds(apart, context)}
        surroundings = functools.partial(digest_groups, context, *apart, *together)
        if context.whether(
            "match", costs.__getitem__, shape=shape, around=surroundings, first=True
        ):
            nodes = [whole if n is node else n for n in nodes if id(n) not in own]
    return nodes


class _Level:
    """The nodes among which matches are searched, and the stages that they become without matches."""

    def __init__(self, nodes: Sequence[Node], join: Join, waits: Waits) -> None:
        self._nodes, self._join, self._waits = nodes, join, waits

    def _merge(self, nodes: Iterable[Node]) -> list[Group]:
        return [n for n in merge(nodes, self._join, self._waits) if isinstance(n, Group)]

    @functools.cached_property
    def _merged(self) -> list[Group]:
        return self._merge(self._nodes)

    def stages(self, whole: Group, own: Sequence[Group]) -> list[Group]:
        """The stages that `own`, the statements of `whole`, become without the match: all those that contain one of them, if no other
        stage could contain `whole` as a part."""
        if not whole.matched:
            return self._merge(own)
        return [g for g in self._merged if g.tensors & whole.tensors]

    def rest(self, stages: Sequence[Group], whole: Group) -> list[Group]:
        """The statements of `stages` outside of `whole`, as stages of their own."""
        names = frozenset[str]().union(*(g.tensors for g in stages)) - whole.tensors
        own = (n for n in self._nodes if isinstance(n, Group) and n.tensors <= names)
        return self._merge(own)


def _repeats(found: Match, around: Loop | Branch | None) -> bool:
    """Whether it reads the same weights in each iteration. As one stage of plain steps, those weights can stay on chip and the results
    of tasks can be messages, neither of which any cost known at this point includes."""
    return isinstance(around, Loop) and not any(around.axis in axes_of(s.body) for s in found.inner)


def _seconds(groups: Sequence[Group], context: Context) -> float:
    """Seconds of `groups` as stages with barriers between them. Intermediate results go through memory where the caches do not hold
    them."""
    target = context.target
    drafts = [cut(g, context) for g in groups]
    if any(d is None for d in drafts):
        return math.inf
    kept = target.l2_bytes * target.model.common.kept
    made = {s.out.name: s.out.nbytes for g in groups for s in g.statements()}
    read = [name for g in groups for name in g.reads if name in made]
    handed = sum(made[name] for name in (*read, *set(read)) if made[name] > kept)
    waits = (len(groups) - 1) * target.barrier_seconds
    return sum(d.seconds for d in drafts if d) + waits + handed / target.dram_bandwidth


def _whole(found: Match, node: Group, parts: list[Group]) -> Group | None:
    """One step if the match is one, else steps that share a stage; None where they have no rows in common."""
    if found.data is not None:
        waits = node.waits.union(*(n.waits for n in parts))
        return Group(((*found.inner, *node.steps[0]),), (), waits, match=found.data)
    whole: Group | None = parts[0]
    for part in (*parts[1:], node):
        whole = unite(whole, part) if whole is not None else None
    return whole
