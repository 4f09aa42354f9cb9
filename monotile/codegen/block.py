"""The emitter interface for targets whose workers are blocks of threads, as kernel families use it."""

import math
import re
from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from monotile.codegen.address import WIDEST
from monotile.codegen.functions import IN_FRONT
from monotile.codegen.site import Range, Site, Span
from monotile.codegen.spelling import bare
from monotile.codegen.stages import product
from monotile.codegen.vector import VectorEmitter
from monotile.codegen.writer import Block
from monotile.config import Options
from monotile.ir.expr import Expr, Load, Tensor
from monotile.ir.program import Program
from monotile.plan.nodes import Plan, Stage, Step
from monotile.targets.target import Target

GIVEN = {"p": "const Params&", "workspace": "char* const"}
_NAME = re.compile(r"[A-Za-z_]\w*")
READY = "mt::NoWait{}"  # a functor that waits for nothing


@dataclass(frozen=True, slots=True)
class RegisterArray:
    """`name` is an array of `count` vectors of `width` values; `number` is the text of the index of the vector that a thread uses in an
    iteration of its reduction."""

    name: str
    element: str
    width: int
    count: int
    number: str

    @property
    def fill(self) -> str:
        """The name of the function that fills it."""
        return f"fill_{self.name}"

    @property
    def kind(self) -> str:
        return f"mt::Held<{self.element}, {self.width}, {self.count}>"


class BlockEmitter(VectorEmitter):
    """passed: parameters of every function, with their types. await_: the functor that waits for the operands of the next step.
    in_registers: values that threads hold through a loop, by the tensor's name. prefetched: the prefetches of the current stage's
    steps at its beginning, by the weight; held_now: those of the current step. hot: stages beside streams in a loop."""

    def __init__(self, program: Program, plan: Plan, target: Target, options: Options) -> None:
        super().__init__(program, plan, target, options)
        self.passed: dict[str, str] = GIVEN | self.profiling.given
        self.await_ = READY
        self.in_registers: dict[str, RegisterArray] = {}
        self.early = {}
        self.prefetched: dict[Step, Mapping[str, RegisterArray]] = {}
        self.held_now: Mapping[str, RegisterArray] = {}
        self.hot = frozenset[str]()

    @abstractmethod
    def with_pinned(self, site: Site) -> Site:
        """The step, reading pinned weights on chip."""

    def bounded(self, r: Range, span: Span) -> Range:
        """Vectors keep their positions: those before `Range.low`, a multiple of any vector width, are dead. At least one element
        remains."""
        origin, end = bare(self.index(r.origin)), bare(self.index(span.end))
        count, low = r.count, ""
        if span.ends:
            count = self.writer.fresh("n")
            text = f"mt_max_idx(1, mt_min_idx({r.count}, {end} - {origin}))"
            self.writer.write(f"const idx {count} = {text};")
            self.writer.define(count)
        if span.begins:
            low = self.writer.fresh("low")
            first = bare(self.index(span.first))
            self.writer.write(
                f"const idx {low} = (mt_max_idx({first} - {origin}, 0)) & ~{WIDEST - 1};"
            )
            self.writer.define(low)
        return replace(r, count=count, low=low)

    @abstractmethod
    def write_prefetches(self, stage: Stage) -> None:
        """Emits the prefetches of the stage's steps at its beginning."""

    def register_array_of(self, tensor: Tensor) -> str | None:
        held = self.held_now.get(tensor.name) or self.in_registers.get(tensor.name)
        return None if held is None else f"{held.name}.value[{held.number}]"

    def home(self, e: Expr, *, asked: bool = False) -> Block:
        """Which of the registers hold the pack that begins at `e` may vary where its index does not."""
        held = self.register_array_of(e.tensor) if isinstance(e, Load) else None
        if held is None:
            return super().home(e, asked=asked)
        return self.writer.home(self.variables(e) | set(_NAME.findall(held)), memory=True)

    @contextmanager
    def tasks(
        self,
        name: str,
        stage: Stage,
        axes: Sequence[str],
        held: Sequence[RegisterArray] = (),
        *,
        late: bool = False,
    ) -> Generator[None]:
        """The function `name`; inside, a task's coordinates are variables.

        held: its register parameters. late: whether it waits for the stage's hand-off, with its task or without.
        """
        most, workers = math.prod(stage.grid), self.plan.launch.workers
        given = self.passed | {h.name: f"{h.kind}&" for h in held}
        if late:
            given |= {"grid": "const mt::GridBarrier"}
        with self.function(name, axes, given):
            w = self.writer
            w.define("scratch")
            w.write("char* const scratch = mt::ptx::shared_memory();")
            first, grid = self.first_task(stage), self.grid(stage)
            if stage.first % workers and stage.name not in self.hot:
                self.in_front = workers - stage.first % workers
                first = first.replace(f"+ {self.in_front})", f"+ {IN_FRONT})")
            tasks = product(grid)
            if stage.everywhere:
                loop = "if (const idx task = 0; true)"
            elif most <= workers:
                loop = f"if (const idx task = {first}; task < {tasks})"
            else:
                loop = f"for (idx task = {first}; task < {tasks}; task += {workers})"
            with w.open(loop, ["task"], fence=True):
                self.write_coordinates(grid)
                yield
            if late and not stage.everywhere:
                with w.open("else", fence=True):
                    w.write(self.await_text())

    def await_text(self) -> str:
        """In a stage that waits late."""
        return f"grid.await();{self.profiling.awaited()}"

    def first_task(self, stage: Stage) -> str:
        """Text of this worker's first task number; it may be beyond the last task."""
        worker, workers = "mt::ptx::recompute(blockIdx.x)", self.plan.launch.workers
        if stage.first % workers == 0:
            return worker
        return f"({worker} + {workers - stage.first % workers}) % {workers}"

    def write_coordinates(self, grid: Sequence[str]) -> None:
        """c0, c1, ...: the task's coordinates in the row-major grid. grid: texts of its extents."""
        for k, extent in enumerate(grid):
            above, step = (_unsigned(product(x)) for x in (grid[k:], grid[k + 1 :]))
            text = "task" if step == "1u" else f"(uint32_t)task / {step}"
            if any(n != "1" for n in grid[:k]):
                text = f"(uint32_t)task % {above}" + (f" / {step}" if step != "1u" else "")
            self.writer.write(f"const idx c{k} = {0 if extent == '1' else text};")
            self.writer.define(f"c{k}")


def _unsigned(count: str) -> str:
    return f"{count}u" if count.isdigit() else f"(uint32_t)({count})"
