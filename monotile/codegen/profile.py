"""The code by which a generated kernel times itself, with `Options(profile=True)`; without it there is none.

The device headers `cuda/profile.cuh` and `cpu/profile.h` define the macros. `profile` is the name of a pointer to an mt_profile.
"""

from collections.abc import Generator
from contextlib import contextmanager

from monotile.codegen.address import loop_variable
from monotile.codegen.writer import Writer
from monotile.config import Options
from monotile.plan.nodes import Plan, Stage
from monotile.plan.records import KINDS, Kind, Recorded, capacity, recorded


class Profiling:
    """worker: text of the worker's number, in a stage's function; outer: the same in the body that calls these."""

    def __init__(self, plan: Plan, options: Options, worker: str, outer: str) -> None:
        self._on, self._worker, self._outer = options.profile, worker, outer
        self._stages = {r.stage.name: (n, r) for n, r in enumerate(recorded(plan))}
        self._slot = plan.pointers
        self._capacity = capacity(plan)
        self._notes = plan.launch.shared_bytes

    @property
    def given(self) -> dict[str, str]:
        """The parameter of a stage's function for it, with its type."""
        return {"profile": "mt_profile* const"} if self._on else {}

    @property
    def pointers(self) -> int:
        """Entries of the launch's pointers after those of the Plan."""
        return int(self._on)

    def include(self, header: str) -> str:
        """The line that brings a target's header of this name."""
        return f'#include "{header}"\n' if self._on else ""

    @contextmanager
    def run(self, w: Writer, *more: str) -> Generator[None]:
        """Around the walk of the Plan. more: arguments of the target's own opening macro."""
        if self._on:
            w.write(f"MT_PROFILE(profile, {self._notes});")
            memory = f"MT_POINTER({self._slot})"
            arguments = ["profile", memory, str(self._capacity), self._outer, *more]
            w.write(f"mt_profile_open({', '.join(arguments)});")
        yield
        if self._on:
            w.write("mt_profile_close(profile);")

    @contextmanager
    def task(self, w: Writer, stage: Stage, task: str = "task") -> Generator[None]:
        """Around the task `task` of the stage that `stage` named. `prefetched` tells which of several tasks of a stage that waits late
        has not waited."""
        if self._on and stage.late and stage.steps[0].method.ahead("task"):
            w.write("if (prefetched) mt_profile_begin(profile);")
        with self._timed(w, self._worker, "task", task, begun=stage.late):
            yield

    def awaited(self) -> str:
        """After the hand-off of a stage that waits late: a task begins."""
        wait = KINDS.index("wait")
        end = f" mt_profile_end(profile, {self._worker}, {wait}, 0); mt_profile_begin(profile);"
        return end if self._on else ""

    @contextmanager
    def wait(self, w: Writer, stage: Stage) -> Generator[None]:
        """Around the hand-off before the stage, or the part of it that precedes a late wait."""
        self.stage(w, stage)
        if stage.handoff == "none":
            yield
            return
        with self._timed(w, self._outer, "wait", "0", ended=stage.late):
            yield

    @contextmanager
    def receive(self, w: Writer) -> Generator[None]:
        """Around the wait for messages, inside a task of the stage that `stage` named."""
        with self._timed(w, self._worker, "wait", "0"):
            yield

    @contextmanager
    def fill(self, w: Writer, stage: Stage, loop: str) -> Generator[None]:
        """Around the copy of the stage's pinned weights of the loop over the axis `loop`."""
        self.stage(w, stage, before=loop)
        with self._timed(w, self._outer, "fill", "0"):
            yield

    def stage(self, w: Writer, stage: Stage, *, before: str | None = None) -> None:
        """The following timings belong to the stage. before: of the loops around it, the one that has not begun."""
        if self._on:
            number, r = self._stages[stage.name]
            w.write(f"mt_profile_stage(profile, {number}, {_iteration(r, before)});")

    @contextmanager
    def _timed(
        self,
        w: Writer,
        worker: str,
        kind: Kind,
        task: str,
        *,
        begun: bool = False,
        ended: bool = False,
    ) -> Generator[None]:
        """begun: the beginning is stamped elsewhere. ended: the end is."""
        if self._on and not begun:
            w.write("mt_profile_begin(profile);")
        yield
        if self._on and not ended:
            w.write(f"mt_profile_end(profile, {worker}, {KINDS.index(kind)}, {task});")


def _iteration(r: Recorded, before: str | None) -> str:
    """The row-major number of the current iteration; of the first one within loops that have not begun."""
    text, begun = "0", True
    for loop in r.loops:
        begun = begun and loop.axis != before
        variable = loop_variable(loop.axis) if begun else "0"
        text = variable if text == "0" else f"({text} * {loop.extent} + {variable})"
    return text
