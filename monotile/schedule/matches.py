"""What a family computes as a whole becomes one group, where nobody else reads what is made on the way."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

from monotile.analysis.states import Waits
from monotile.ir.program import Compute
from monotile.kernels.draft import Context
from monotile.kernels.family import Match
from monotile.kernels.group import Group
from monotile.kernels.registry import match
from monotile.schedule.groups import Join, Node, merge, needs_of, unite
from monotile.schedule.keys import digest_groups
from monotile.schedule.tiles import cut


def join_matches(
    nodes: list[Node], uses: Mapping[str, int], context: Context, waits: Waits, join: Join
) -> list[Node]:
    """`nodes` with what families match in one group, if such a group can be cut. Unless it is known to be faster, the model compares
    it with stages of their own, as `join` would make them. uses: how often each tensor of theirs is mentioned."""
    computes = {
        s.out.name: s
        for node in nodes
        if isinstance(node, Group) and len(node.steps) == 1
        for s in node.steps[0]
        if isinstance(s, Compute)
    }
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
        one = cut(whole, context) if whole is not None else None
        if whole is None or one is None:
            continue
        shape = functools.partial(digest_groups, context, whole)
        together = apart = 0.0
        if not found.faster:
            together = one.seconds
            apart = _apart(merge([*parts, node], join, waits), context)
        costs = {True: together, False: apart}
        if context.whether("match", costs.__getitem__, shape=shape, first=True):
            nodes = [whole if n is node else n for n in nodes if id(n) not in own]
    return nodes


def _apart(stages: Sequence[Node], context: Context) -> float:
    """Seconds of `stages`, with the barriers between them; what they hand on goes through memory where the caches do not keep it."""
    target = context.target
    groups = [g for g in stages if isinstance(g, Group)]
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
    """One step, if the match is one, else steps that share a stage; None where they have no rows in common."""
    if found.data is not None:
        waits = node.waits.union(*(n.waits for n in parts))
        return Group(((*found.inner, *node.steps[0]),), (), waits, match=found.data)
    whole: Group | None = parts[0]
    for part in (*parts[1:], node):
        whole = unite(whole, part) if whole is not None else None
    return whole
