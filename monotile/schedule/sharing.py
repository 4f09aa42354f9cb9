"""Divides the workers among stages that wait for the same hand-off, where running them side by side is faster than one after the other
(Rammer's independent branches)."""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from monotile.kernels.draft import Context, Draft
from monotile.plan.streams import streams
from monotile.schedule.keys import digest_groups
from monotile.schedule.tiles import cut
from monotile.schedule.tree import Fork, Nest, Tree, trips
from monotile.targets.target import Target


def share_workers(tree: Tree, context: Context) -> Tree:
    """`tree` with the stages of each run that waits once cut for as many workers each as make them end together.

    A stage with a share has at most one task for each of its workers. The longest of the stages that wait comes first, since it may wait
    late.
    """
    out: list[Draft | Nest | Fork] = []
    made = frozenset[str]()  # by the run before
    for run in runs(tree):
        if not isinstance(run, list):
            out.append(_inside(run, context))
            made = frozenset()
            continue
        done = _shared(run, context)
        out += sorted(done, key=lambda d: -d.seconds if d.group.reads & made else 0.0)
        made = frozenset[str]().union(*(d.group.tensors for d in run))
    return tuple(out)


def _inside(node: Nest | Fork, context: Context) -> Nest | Fork:
    match node:
        case Nest(loop, body):
            return Nest(loop, share_workers(body, context))
        case Fork(branch):
            return Fork(branch, *(share_workers(side, context) for side in node.sides))


def _shared(run: list[Draft], context: Context) -> list[Draft]:
    """`_side_by_side`, memoised for each run, since compared Programs differ in few runs. The value keeps the drafts alive, whose
    identities are the key."""
    key = ("side by side", *map(id, run))
    return context.memo.once(key, lambda: (run, _side_by_side(run, context)))[1]


def _side_by_side(run: list[Draft], context: Context) -> list[Draft]:
    """`run`, cut anew where it has more tasks than there are workers. Stages that stream weights have all workers, since memory is no
    faster for some."""
    workers = context.target.workers
    streaming = [d for d in run if any(map(streams, d.steps))]
    run = [d for d in run if d not in streaming]
    if streaming:
        return streaming + _side_by_side(run, context)
    if 1 < len(run) <= workers and sum(d.tasks for d in run) > workers:
        return _Sharing(run, context).best()
    return run


def runs(tree: Tree) -> Iterator[Nest | Fork | list[Draft]]:
    """Loops, branches, and runs of neighbours that do not depend on each other. Copies at the beginning of a network are cut by
    `spread`."""
    run: list[Draft] = []
    for node in tree:
        if not isinstance(node, Draft) or node.steps[0].method.copies:
            if run:
                yield run
            yield [node] if isinstance(node, Draft) else node
            run = []
            continue
        if any(d.group.tensors & node.group.reads for d in run):
            yield run
            run = []
        run.append(node)
    if run:
        yield run


def seconds_shared(tree: Tree, target: Target) -> float:
    """The cost model's estimate for a tree whose stages share workers: one hand-off before each run. Its stages run side by side where
    each worker has one task at most."""
    total = 0.0
    for run in runs(tree):
        match run:
            case list():
                total += target.barrier_seconds + of_run(run, lambda d: d.seconds, target)
            case Nest(loop, body):
                total += trips(loop) * seconds_shared(body, target)
            case Fork():
                total += max(seconds_shared(side, target) for side in run.sides)
    return total


def of_run(run: list[Draft], each: Callable[[Draft], float], target: Target) -> float:
    """Seconds of a run on the busiest worker: the longest stage where all run side by side, else their sum."""
    beside = sum(d.tasks for d in run) <= target.workers
    return (max if beside else sum)(map(each, run))


class _Sharing:
    """The search for the workers of each stage of one run."""

    def __init__(self, run: list[Draft], context: Context) -> None:
        self.run, self.context = run, context

    def best(self) -> list[Draft]:
        """The longest stage unchanged and the others on the workers that it leaves idle; or, if that is much faster, all with a share.
        The run unchanged if neither is faster."""
        worth = self.context.target.model.common.worth  # a margin, as the cost model only ranks
        longest = max(self.run, key=lambda d: d.seconds)
        found = self._balanced(self.run, self.context.target.workers)
        others = [d for d in self.run if d is not longest]
        idle = self.context.target.workers - longest.tasks
        if idle >= len(others):
            rest = iter(self._balanced(others, idle))
            kept = [d if d is longest else next(rest) for d in self.run]
            costs = {True: worth * _span(kept), False: _span(found)}
            if self._whether("longest stage whole", costs):
                found = kept
        side_by_side = [d for d in found if d is not None]
        apart = worth * sum(d.seconds for d in self.run)
        if len(side_by_side) < len(self.run):
            return self.run
        costs = {True: _span(found), False: apart}
        return side_by_side if self._whether("side by side", costs) else self.run

    def _whether(self, kind: str, costs: dict[bool, float]) -> bool:
        """Yes or no, for the whole run; yes where both cost the same."""
        return self.context.whether(
            kind, costs.__getitem__, shape=lambda: self._digest(self.run), first=True
        )

    def _digest(self, run: list[Draft], more: object = None) -> str:
        return digest_groups(self.context, *(d.group for d in run), more=more)

    def _balanced(self, run: list[Draft], workers: int) -> list[Draft | None]:
        """Starting with shares proportional to time, moves workers from the stage that ends first to the one that ends last. Each
        division on the way is a candidate."""
        found = self.context.choose(
            "shares",
            self._met(run, workers),
            shape=lambda: self._digest(run, workers),
            cost=lambda way: _span(way[1]),
            value=lambda way: way[0],
        )
        assert found is not None
        return found[1]

    def _met(
        self, run: list[Draft], workers: int
    ) -> Iterator[tuple[list[int], list[Draft | None]]]:
        """A division of the workers, and the stages cut for it."""
        total = sum(d.seconds for d in run)
        shares = [max(1, int(workers * d.seconds / total)) for d in run]
        while sum(shares) > workers:
            shares[shares.index(max(shares))] -= 1
        found = self._cut(run, shares)
        yield shares, found
        step = workers // 8
        while step and len(run) > 1:
            last, first = _extremes(found)
            moved = list(shares)
            moved[last] += step
            moved[first] -= step
            better = self._cut(run, moved) if moved[first] > 0 else None
            if better is not None:
                yield moved, better
            if better is not None and _span(better) < _span(found):
                shares, found = moved, better
            else:
                step //= 2

    def _cut(self, run: list[Draft], shares: Sequence[int]) -> list[Draft | None]:
        """The stages, each cut for so many workers; None for a stage that has several tasks for one worker."""
        drafts = (cut(d.group, self._for(n)) for d, n in zip(run, shares, strict=True))
        return [d if d and d.tasks <= n else None for d, n in zip(drafts, shares, strict=True)]

    def _for(self, workers: int) -> Context:
        return self.context.memo.once(("workers", workers), lambda: _with(self.context, workers))


def _with(context: Context, workers: int) -> Context:
    """`context` for a part of its workers, each as fast as before: products are cut in the same ways."""
    return Context(
        context.tables,
        _part(context.target, workers),
        of_worker=context.of_worker,
        chooser=context.chooser,
        streamed=context.streamed,
        copied=context.copied,
    )


def _part(target: Target, workers: int) -> Target:
    """`target` as it would be with so many workers."""
    part = workers / target.workers
    flops = {name: rate * part for name, rate in target.flops.items()}
    return msgspec.structs.replace(target, workers=workers, flops=flops)


def _seconds(draft: Draft | None) -> float:
    return draft.seconds if draft else float("inf")


def _span(drafts: Sequence[Draft | None]) -> float:
    return max(map(_seconds, drafts))


def _extremes(drafts: Sequence[Draft | None]) -> tuple[int, int]:
    """The stage that ends last, and the one that ends first."""
    order = sorted(range(len(drafts)), key=lambda i: _seconds(drafts[i]))
    return order[-1], order[0]
