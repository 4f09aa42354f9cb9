"""The order of stages, where the Program leaves it open: what streams weights comes before what waits for other streamed products.

The stages between would wait for a hand-off, and the streamed product behind them would make whatever reads it wait for another one.
"""

from monotile.kernels.draft import Draft
from monotile.plan.streams import streams
from monotile.schedule.tree import Fork, Nest, Tree


def streams_first(tree: Tree) -> Tree:
    """`tree` with every stage that streams weights as early among its neighbours as what it reads allows."""
    out: list[Draft | Nest | Fork] = []
    for node in tree:
        match node:
            case Nest(loop, body):
                out.append(Nest(loop, streams_first(body)))
            case Fork(branch):
                out.append(Fork(branch, *map(streams_first, node.sides)))
            case Draft():
                at = len(out)
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
