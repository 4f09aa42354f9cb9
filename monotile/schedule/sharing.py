"""Stages that wait for the same hand-off get a share of the workers each, where that takes less than all workers one after the other
(Rammer's independent branches side by side)."""

from collections.abc import Iterator, Sequence

import msgspec

from monotile.kernels.draft import Context, Draft
from monotile.schedule.tiles import cut
from monotile.schedule.tree import Nest, Tree
from monotile.targets.target import Target


def share_workers(tree: Tree, context: Context) -> Tree:
    """`tree` with the stages of each run that waits once cut for as many workers as make them end together.

    A stage that has a share has at most one task for each of its workers. The longest of those that wait comes first, as that one
    may wait late.
    """
    out: list[Draft | Nest] = []
    made = frozenset[str]()  # by the run before
    for run in _runs(tree):
        if isinstance(run, Nest):
            out.append(Nest(run.loop, share_workers(run.body, context)))
            made = frozenset()
            continue
        done = _side_by_side(run, context)
        out += sorted(done, key=lambda d: -d.seconds if d.group.reads & made else 0.0)
        made = frozenset[str]().union(*(d.group.tensors for d in run))
    return tuple(out)


def _side_by_side(run: list[Draft], context: Context) -> list[Draft]:
    """`run`, cut anew where its tasks are more than the workers."""
    workers = context.target.workers
    if 1 < len(run) <= workers and sum(d.tasks for d in run) > workers:
        return _Sharing(run, context).best()
    return run


def _runs(tree: Tree) -> Iterator[Nest | list[Draft]]:
    """Loops, and neighbours that do not read each other. Copies that a network begins with are cut by `spread`."""
    run: list[Draft] = []
    for node in tree:
        if isinstance(node, Nest) or node.steps[0].method.copies:
            if run:
                yield run
            yield node if isinstance(node, Nest) else [node]
            run = []
            continue
        if any(d.group.tensors & node.group.reads for d in run):
            yield run
            run = []
        run.append(node)
    if run:
        yield run


class _Sharing:
    """The search for the shares of one run."""

    def __init__(self, run: list[Draft], context: Context) -> None:
        self.run, self.context = run, context
        self.contexts: dict[int, Context] = {}

    def best(self) -> list[Draft]:
        """The longest stage as it is, the others with shares of what it leaves idle; or, if that is much faster, all with a share.
        The run as it was, if neither is worth it."""
        worth = self.context.target.model.common.worth  # as the model only ranks
        longest = max(self.run, key=lambda d: d.seconds)
        found = self._balanced(self.run, self.context.target.workers)
        others = [d for d in self.run if d is not longest]
        idle = self.context.target.workers - longest.tasks
        if idle >= len(others):
            rest = iter(self._balanced(others, idle))
            kept = [d if d is longest else next(rest) for d in self.run]
            if worth * _span(kept) <= _span(found):
                found = kept
        if _span(found) > worth * sum(d.seconds for d in self.run):
            return self.run
        return [d for d in found if d is not None]

    def _balanced(self, run: list[Draft], workers: int) -> list[Draft | None]:
        """From shares by time on, workers move from the stage that is done first to the one that is done last."""
        total = sum(d.seconds for d in run)
        shares = [max(1, int(workers * d.seconds / total)) for d in run]
        while sum(shares) > workers:
            shares[shares.index(max(shares))] -= 1
        found = self._cut(run, shares)
        step = workers // 8
        while step and len(run) > 1:
            last, first = _extremes(found)
            moved = list(shares)
            moved[last] += step
            moved[first] -= step
            if moved[first] > 0 and _span(better := self._cut(run, moved)) < _span(found):
                shares, found = moved, better
            else:
                step //= 2
        return found

    def _cut(self, run: list[Draft], shares: Sequence[int]) -> list[Draft | None]:
        """The stages cut for so many workers each; None for what has several tasks for one of them."""
        drafts = (cut(d.group, self._for(n)) for d, n in zip(run, shares, strict=True))
        return [d if d and d.tasks <= n else None for d, n in zip(drafts, shares, strict=True)]

    def _for(self, workers: int) -> Context:
        if workers not in self.contexts:
            # A worker is as fast: products are cut in the same ways.
            target = _part(self.context.target, workers)
            self.contexts[workers] = Context(
                self.context.tables, target, of_worker=self.context.of_worker
            )
        return self.contexts[workers]


def _part(target: Target, workers: int) -> Target:
    """`target` as it would be with so many of its workers."""
    part = workers / target.workers
    flops = {name: rate * part for name, rate in target.flops.items()}
    return msgspec.structs.replace(target, workers=workers, flops=flops)


def _seconds(draft: Draft | None) -> float:
    return draft.seconds if draft else float("inf")


def _span(drafts: Sequence[Draft | None]) -> float:
    return max(map(_seconds, drafts))


def _extremes(drafts: Sequence[Draft | None]) -> tuple[int, int]:
    """Which is done last, and which first."""
    order = sorted(range(len(drafts)), key=lambda i: _seconds(drafts[i]))
    return order[-1], order[0]
