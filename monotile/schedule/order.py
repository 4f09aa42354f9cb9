"""Orders stages where dependences leave their order open.

Stages that stream weights come before stages that wait for other streamed products. Otherwise the stages between would need a hand-off,
and the streamed product after them would make its readers wait for another. The stages that decide whether a loop continues come first
in its body where they do not depend on that iteration: all workers wait for the decision at its end, and by then another hand-off has
delivered it. A stage that takes hardly longer than a hand-off runs beside earlier stages where workers are idle; beside a stage that
occupies all workers it would delay them.
"""

from collections.abc import Callable, Sequence

from monotile.kernels.draft import Draft
from monotile.plan.streams import streams
from monotile.schedule.groups import writes_of
from monotile.schedule.sharing import runs
from monotile.schedule.tree import Fork, Nest, Tree
from monotile.targets.target import Target

SMALL = 4.0  # upper limit for a stage that may move, in hand-offs' time
WORTH = 0.2  # the least that a move has to save, in hand-offs' time


def streams_first(tree: Tree) -> Tree:
    """`tree` with every stage that streams weights moved as early among its neighbours as its dependences allow."""
    return _each_body(tree, _early_streams)


def decisions_first(tree: Tree) -> Tree:
    """`tree` with the stages that decide whether a loop continues among the first of its body, where they read nothing made there."""
    return tuple(
        Nest(n.loop, _first(decisions_first(n.body), n.loop.predicate.name))
        if isinstance(n, Nest) and n.loop.predicate is not None
        else _with_bodies(n, decisions_first)
        for n in tree
    )


def small_first(tree: Tree, target: Target) -> Tree:
    """`tree` with every small stage moved into an earlier run of stages side by side, as dependences allow, where that shortens the
    whole."""
    return _each_body(tree, lambda body: _early(body, target))


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
    """`body` with the stage that computes `name` placed after the leading stages that read nothing made here, if it is one of them."""
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


def _early(body: Tree, target: Target) -> Tree:
    out = list(runs(body))
    for at, run in enumerate(out):
        if not isinstance(run, list):
            continue
        for d in [d for d in run if d.seconds <= SMALL * target.barrier_seconds]:
            best = min(_before(out[:at], d), key=lambda r: _added(d, r, target), default=run)
            if _added(d, best, target) + WORTH * target.barrier_seconds < _added(d, run, target):
                run.remove(d)
                best.append(d)
    return tuple(n for run in out for n in (run if isinstance(run, list) else [run]))


def _added(d: Draft, run: list[Draft], target: Target) -> float:
    """The seconds that `d` adds to `run`."""
    others = [x for x in run if x is not d]
    return _seconds([*others, d], target) - _seconds(others, target)


def _before(body: Sequence[list[Draft] | Nest | Fork], d: Draft) -> list[list[Draft]]:
    """The last runs of `body` that `d` may join. The copies at the beginning of a network stay side by side."""
    out: list[list[Draft]] = []
    for run in reversed(body):
        if not isinstance(run, list) or any(x.steps[0].method.copies for x in (d, *run)):
            break
        if not all(_independent(x, d) for x in run):
            break
        out.append(run)
    return out


def _seconds(run: list[Draft], target: Target) -> float:
    """Seconds of a run under perfect load balance."""
    if not run:
        return 0.0
    busy = sum(d.seconds * min(1.0, d.tasks / target.workers) for d in run)
    return target.barrier_seconds + max(busy, *(d.seconds for d in run))


def _streams(d: Draft) -> bool:
    return any(map(streams, d.steps))


def _may_follow(before: Draft | Nest | Fork, d: Draft) -> bool:
    """Whether `before` may come after `d` instead: it is independent of `d` and streams nothing itself."""
    return isinstance(before, Draft) and not _streams(before) and _independent(before, d)


def _independent(a: Draft, b: Draft) -> bool:
    """Whether neither depends on the other."""
    return not a.group.tensors & b.group.reads and not b.group.tensors & a.group.reads
