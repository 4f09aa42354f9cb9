"""Prefetches for each step (CUDA): at each point, every family says what its steps can load early. Also decides which stages wait for their
hand-off within their first step, so that there is time to prefetch before it.

The addresses of a product's or attention's first copies depend on the task alone. They take some hundred instructions, for which there
is time between a worker's arrival at the barrier and its release.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from monotile.codegen.view import Views
from monotile.ir.program import Program
from monotile.kernels.family import Prefetching
from monotile.kernels.registry import family_of, why_not_late
from monotile.plan.live_tasks import is_given, live_tasks
from monotile.plan.nodes import PlanNode, Repeat, Stage
from monotile.plan.places import Place
from monotile.plan.streams import any_streams
from monotile.plan.walk import repeats, with_bodies
from monotile.targets.target import Target


def prefetch(
    body: tuple[PlanNode, ...],
    program: Program,
    places: Mapping[str, tuple[Place, ...]],
    steady: frozenset[str],
    target: Target,
) -> tuple[PlanNode, ...]:
    """`body` with `Stage.late` and the prefetches of its methods. steady: weights that the launch does not change."""
    weights = program.weights
    large = sum(w.tensor.nbytes for w in weights) > target.cached_weight_bytes
    found = _Prefetcher(
        Views(program, places, body),
        steady,
        frozenset(w.tensor.name for w in weights) if large else frozenset(),
        frozenset(r.stage for loop in repeats(body) for r in loop.resident),
        target,
    )
    return found.nodes(body, frozenset(), any(map(any_streams, body)))


class _Prefetcher(msgspec.Struct, frozen=True):
    """streamed: weights that together exceed the last-level cache. pinned: stages whose weights a loop keeps on chip."""

    views: Views
    steady: frozenset[str]
    streamed: frozenset[str]
    pinned: frozenset[str]
    target: Target

    def nodes(
        self, body: tuple[PlanNode, ...], loops: frozenset[str], supplied: bool
    ) -> tuple[PlanNode, ...]:
        """loops: axes of the enclosing loops. supplied: a supplier walks through `body`."""
        out: list[PlanNode] = []
        for n in body:
            if isinstance(n, Stage):
                out.append(self._stage(n, loops, supplied))
                continue
            inner = loops | {n.axis} if isinstance(n, Repeat) else loops
            here = supplied and any_streams(n)
            out.append(with_bodies(n, lambda b, inner=inner, s=here: self.nodes(b, inner, s)))
        return tuple(out)

    def _stage(self, stage: Stage, loops: frozenset[str], supplied: bool) -> Stage:
        if supplied and not stage.everywhere:
            stage = self._asked(stage, loops, "ring")
        stage = self._asked(stage, loops, "stage")
        workers = self.target.workers
        sized = live_tasks(stage, self.views.statements, self.views.places)
        asks = all(is_given(x, self.views.places) for x in sized)  # the task count is known
        late = asks and why_not_late(stage, self.views.statements, workers) is None
        if stage.handoff == "grid" and late:
            stage = msgspec.structs.replace(stage, late=True)
            stage = self._asked(stage, loops, "handoff")
        return self._asked(stage, loops, "use")

    def _asked(
        self, stage: Stage, loops: frozenset[str], at: Literal["ring", "stage", "handoff", "use"]
    ) -> Stage:
        """`stage` with the prefetches of its steps at one point, the first step's before the second's."""
        for number, step in enumerate(stage.steps):
            where = Prefetching(
                number, self.views.of(stage), self.steady, self.streamed, loops,
                stage.name in self.pinned, self.target,
            )  # fmt: skip
            more = family_of(step.method).prefetch(where, at)
            if more:
                step = msgspec.structs.replace(step, method=step.method.with_prefetch(more))
                steps = (*stage.steps[:number], step, *stage.steps[number + 1 :])
                stage = msgspec.structs.replace(stage, steps=steps)
        return stage
