"""The order of stages, where the Program leaves it open.

What streams weights comes before what waits for other streamed products: the stages between would wait for a hand-off, and the streamed product
behind them would make whatever reads it wait for another one. What decides whether a loop goes on comes as an iteration begins, where it needs
nothing of that, with what else does not: all workers wait for it in the end, and then some hand-off of the iteration has brought it.
"""

from collections.abc import Callable

from monotile.kernels.draft import Draft
from monotile.plan.streams import streams
from monotile.schedule.groups import writes_of
from monotile.schedule.tree import Fork, Nest, Tree


def streams_first(tree: Tree) -> Tree:
    """`tree` with every stage that streams weights as early among its neighbours as what it reads allows."""
    return _each_body(tree, _early_streams)


def decisions_first(tree: Tree) -> Tree:
    """`tree` with what its loops go on by among the first stages of their bodies, where it reads nothing made there."""
    return tuple(
        Nest(n.loop, _first(decisions_first(n.body), n.loop.predicate.name))
        if isinstance(n, Nest) and n.loop.predicate is not None
        else _with_bodies(n, decisions_first)
        for n in tree
    )


def _each_body(tree: Tree, change: Callable[[Tree], Tree]) -> Tree:
    return change(tuple(_with_bodies(n, lambda body: _each_body(body, change)) for n in tree))


def _with_bodies(node: Draft | Nest | Fork, change: Callable[[Tree], Tree]) -> Draft | Nest | Fork:
    match node:
        case Draft():
            return node
        case Nest(loop, body):
            return Nest(loop, change(body))
        case Fork(branch):
            return Fork(branch, *map(change, node.sides))


def _first(body: Tree, name: str) -> Tree:
    """`body` with the stage that makes `name` behind those in front that read nothing made here, if it is one of them."""
    made = frozenset[str]().union(*map(_made, body))
    free = [isinstance(n, Draft) and not n.group.reads & made for n in body]
    front = (*free, False).index(False)
    for k, d in enumerate(body[front:], front):
        if free[k] and name in _made(d):
            return (*body[:front], d, *body[front:k], *body[k + 1 :])
    return body


def _made(node: Draft | Nest | Fork) -> frozenset[str]:
    match node:
        case Draft(group):
            return group.tensors
        case Nest(loop):
            return writes_of(loop)
        case Fork(branch):
            return writes_of(branch)


def _early_streams(body: Tree) -> Tree:
    out: list[Draft | Nest | Fork] = []
    for node in body:
        at = len(out)
        if isinstance(node, Draft):
            while _streams(node) and at and _may_follow(out[at - 1], node):
                at -= 1
        out.insert(at, node)
    return tuple(out)


def _streams(d: Draft) -> bool:
    return any(map(streams, d.steps))


def _may_follow(before: Draft | Nest | Fork, d: Draft) -> bool:
    """Whether `before` may come after `d` instead, and streams nothing itself."""
    if not isinstance(before, Draft) or _streams(before):
        return False
    return not before.group.tensors & d.group.reads and not d.group.tensors & before.group.reads
