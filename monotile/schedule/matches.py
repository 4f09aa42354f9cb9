"""What a family computes as a whole becomes one group, where nobody else reads what is made on the way."""

import functools

from monotile.analysis.states import Waits
from monotile.analysis.uses import mentions
from monotile.ir.program import Compute, Program
from monotile.kernels.draft import Context
from monotile.kernels.family import Match
from monotile.kernels.group import Group
from monotile.kernels.registry import match
from monotile.schedule.groups import Node, needs_of, unite
from monotile.schedule.keys import digest_groups
from monotile.schedule.tiles import cut


def join_matches(nodes: list[Node], program: Program, context: Context, waits: Waits) -> list[Node]:
    """`nodes` with what families match in one group, if such a group can be cut. The model compares nothing here: what matches is taken."""
    computes = {
        s.out.name: s
        for node in nodes
        if isinstance(node, Group) and len(node.steps) == 1
        for s in node.steps[0]
        if isinstance(s, Compute)
    }
    uses = mentions(program)
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
        between = (n for n in nodes[: nodes.index(node)] if n not in parts)
        if any(needs_of(n, waits) & (found.kept | made) for n in between):
            continue
        whole = _whole(found, node, parts)
        if whole is None or cut(whole, context) is None:
            continue
        shape = functools.partial(digest_groups, context, whole)
        if context.whether("match", lambda _: 0.0, shape=shape, first=True):
            nodes = [whole if n is node else n for n in nodes if n not in parts]
    return nodes


def _whole(found: Match, node: Group, parts: list[Group]) -> Group | None:
    """One step, if the match is one, else steps that share a stage; None where they have no rows in common."""
    if found.data is not None:
        waits = node.waits.union(*(n.waits for n in parts))
        return Group(((*found.inner, *node.steps[0]),), (), waits, match=found.data)
    whole: Group | None = parts[0]
    for part in (*parts[1:], node):
        whole = unite(whole, part) if whole is not None else None
    return whole
