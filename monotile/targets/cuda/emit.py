"""The CUDA target: one cooperative kernel that walks the Plan, in CUDA C++ over `targets/cuda/device/`.

A worker is a block of threads. Every stage is a function over the block; hand-offs are barriers of the grid or of the
block. Pointers come by value in the launch's parameters (or as an array in memory where they are too many).
"""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec

from monotile.analysis.affine import Affine
from monotile.analysis.states import steady_weights
from monotile.codegen.address import Layout
from monotile.codegen.base import Site
from monotile.codegen.functions import Function
from monotile.codegen.source import Source
from monotile.codegen.vector import VectorEmitter
from monotile.codegen.writer import Writer
from monotile.config import Options
from monotile.ir.expr import Expr, Tensor
from monotile.ir.program import Compute, Program
from monotile.kernels.attention.cuda import write_attend
from monotile.kernels.common.cuda_threads import write_serial
from monotile.kernels.elementwise.cuda import write_early, write_map
from monotile.kernels.matmul.cuda import write_contract, write_operands
from monotile.kernels.reduction.cuda import write_reduce
from monotile.kernels.reduction.cuda_columns import write_columns
from monotile.kernels.reduction.cuda_held import Held, held_through, write_hold, write_weights_early
from monotile.kernels.reduction.cuda_pinned import Kept, from_images, kept_of, write_fill
from monotile.kernels.reduction.cuda_windows import write_side_by_side
from monotile.kernels.rowwise.cuda import write_rows
from monotile.kernels.transpose.cuda import write_interleave, write_turn
from monotile.plan.nodes import (
    Attend,
    Contract,
    HoldRows,
    Interleave,
    Map,
    Place,
    Plan,
    Reduce,
    Repeat,
    Serial,
    Stage,
    Step,
    Turn,
)
from monotile.schedule.prefetch.early import weights_of
from monotile.targets.cuda.messages import (
    Received,
    on_chip,
    received_of,
    slots_of,
    write_receive,
    write_send,
)
from monotile.targets.target import Target

ENTRY = "monotile_kernel"
GIVEN = {"p": "const Params&", "workspace": "char* const"}
# Functions of a kernel from which on all are called, and from which on each is compiled by itself: ptxas's time grows faster
# than a body of code. The second makes a kernel 3 to 8 % slower (docs/measurements.md).
CALLED, APART = 24, 44
READY = "mt::Ready{}"  # a functor: nothing to wait for
HEADER_BYTES = 16  # of the parameters before the pointers


def emit(program: Program, plan: Plan, target: Target, options: Options) -> Source:
    """The source of `plan`. Indices are 32 bits wide unless some do not fit."""
    narrow = CudaEmitter(program, plan, target, options, wide=False)
    text = narrow.source()
    if not narrow.overflow:
        return Source(text, ENTRY, tuple(narrow.checks), narrow.apart)
    wide = CudaEmitter(program, plan, target, options, wide=True)
    return Source(wide.source(), ENTRY, tuple(wide.checks), wide.apart)


class CudaEmitter(VectorEmitter):
    """The kernel and one function a stage."""

    worker = outer = "blockIdx.x"

    def __init__(
        self, program: Program, plan: Plan, target: Target, options: Options, *, wide: bool
    ) -> None:
        super().__init__(program, plan, target, options, wide=wide)
        self.kept = kept_of(plan, self.computes)
        self.slots = slots_of(plan, self.computes)
        self.received = received_of(plan, self.slots)
        images = {k.image.name: (k.place,) for k in (*self.kept, *self.received)}
        self.plan = msgspec.structs.replace(plan, places=plan.places | images)
        self.in_registers: dict[str, Held] = {}  # by the image that threads have in registers
        # What the steps of the current stage asked for early, by the weight; of these, the current step's.
        self.weights_early: dict[Step, dict[str, Held]] = {}
        self.held_now: dict[str, Held] = {}
        self.passed = GIVEN | self.profiling.given
        self.weights = steady_weights(program)
        self.await_ = READY  # the functor that waits for what the next step reads
        self.apart = False  # whether each function is to be compiled by itself
        if self.slots:
            self.passed |= {"tag": "const unsigned"}

    def source(self) -> str:
        """The whole translation unit."""
        for stage, axes in self.stages():
            own = [k for k in self.kept if k.stage.name == stage.name]
            for k in own:
                self._fill(k, axes[: axes.index(k.loop)])
                if k.resident.held:
                    self._hold(k, axes[: axes.index(k.loop)])
            self._stage(stage, axes)
        self.writer = Writer()
        self._kernel()
        every = list(self.functions)
        functions = "".join(
            _definition(f, self.passed, called=self._called(f, len(every))) for f in every
        )
        self.apart = len(every) >= APART
        return self._prologue() + functions + self.writer.text

    def _called(self, f: Function, count: int) -> bool:
        """Whether the kernel calls `f`, of its `count` functions, instead of having it as a part of its own.

        A callee has none of the kernel's registers. Where functions are not compiled apart, ptxas serialises every wgmma if
        one is in a callee (C7510); where they are, if one is in the kernel (C7509). Attention by mma.sync needs all registers for itself.
        """
        if any("mt::Held" in k for k in f.parameters.values()):
            return False
        if "mt::Kernel::WGMMA" in f.body:
            return count >= APART
        return "mt::attend<" in f.body or len(f.callers) > 1 or count >= CALLED

    def _prologue(self) -> str:
        count = len(self.plan.inputs) + len(self.plan.outputs) + len(self.plan.weights)
        count += self.profiling.pointers
        inside = HEADER_BYTES + 8 * count <= self.target.parameter_bytes
        pointers = f"void* pointers[{max(count, 1)}]" if inside else "void* const* pointers"
        apart = "#define MT_APART\n" if self.apart else ""
        return (
            f"// Generated by Monotile for {self.target.name}.\n"
            "#pragma nv_diag_suppress 177\n"
            f"{apart}"
            '#include "cuda/device/monotile.cuh"\n'
            f"{self.profiling.include('cuda/device/profile.cuh')}\n"
            f"using idx = {'int64_t' if self.wide else 'int32_t'};\n"
            f"struct Params {{\n  char* workspace;\n  unsigned* sync;\n  {pointers};\n}};\n"
            "#define MT_POINTER(n) p.pointers[n]\n\n"
            "static __device__ __forceinline__ idx mt_checked(int64_t i, int64_t extent, int number) {\n"
            "  if ((uint64_t)i < (uint64_t)extent) return (idx)i;\n"
            "  mt::fail(number);\n"
            "  return 0;\n}\n"
            "#define MT_CHECK(i, extent, number) mt_checked((int64_t)(i), extent, number)\n\n"
        )

    def _stage(self, stage: Stage, axes: tuple[str, ...]) -> None:
        """A function that runs this worker's tasks in ascending order."""
        held = [
            self.in_registers[k.image.name]
            for k in self.kept
            if k.stage.name == stage.name and k.image.name in self.in_registers
        ]
        if stage.steps[0].teams > 1:
            self._teams(stage, axes)
            return
        if stage.steps[0].following:
            self._in_a_row(stage, axes)
            return
        with self._tasks(stage.name, stage, axes, held, late=stage.late):
            w = self.writer
            received = self._received(stage)
            if received:
                with self.profiling.receive(w):
                    self._ask_early(stage)
                    for r in received:
                        write_receive(self, r, stage)
                    w.write("mt::block_barrier();")
            with self.profiling.task(w, stage):
                if not received:
                    self._ask_early(stage)
                self.await_ = f"[&] {{ {self._await()} }}" if stage.late else READY
                for site in self.sites(stage):
                    with w.open("", fence=True):
                        if site.step.barrier:
                            w.write("mt::block_barrier();")
                            self.busy = 0
                        self.step(site)
                    self.await_ = READY

    def _teams(self, stage: Stage, axes: tuple[str, ...]) -> None:
        """The same with teams of its threads, which take the tasks in turn. Of these as one a profile has the time."""
        tasks, workers = math.prod(stage.grid), self.plan.launch.workers
        teams = stage.steps[0].teams
        with self.function(stage.name, axes, self.passed):
            w = self.writer
            w.define("scratch")
            w.write("char* const scratch = mt::ptx::shared_memory();")
            w.write(f"const idx first = {self._first_task(stage)};")
            with self.profiling.task(w, stage, "first"):
                each = self.plan.launch.threads // teams
                w.write(f"const idx team = mt::ptx::uniform(threadIdx.x / {each});")
                loop = f"for (idx task = first + team * {workers}; task < {tasks}; task += {workers * teams})"
                with w.open(loop, ["task"], fence=True):
                    self._coordinates(stage)
                    self._ask_early(stage)
                    for site in self.sites(stage):
                        self.step(site)
                w.write("mt::block_barrier();")

    def _in_a_row(self, stage: Stage, axes: tuple[str, ...]) -> None:
        """The same where a task of the one step asks for operands of the next."""
        tasks, workers = math.prod(stage.grid), self.plan.launch.workers
        step = stage.steps[0]
        assert isinstance(step.method, Contract)
        given = self.passed | ({"grid": "const mt::GridBarrier"} if stage.late else {})
        with self.function(stage.name, axes, given):
            w = self.writer
            w.define("scratch")
            w.write("char* const scratch = mt::ptx::shared_memory();")
            head = "auto operands = [&](idx task, auto&& use)"
            with w.open(head, ["task", "use"], fence=True, tail=";"):
                self._coordinates(stage)
                (sides,) = [write_operands(self, s, step.method) for s in self.sites(stage)]
            w.write(f"const idx first = {self._first_task(stage)};")
            loop = f"for (idx task = first; task < {tasks}; task += {workers})"
            with w.open(loop, ["task"], fence=True):
                w.write("const bool begun = task != first;")
                self._coordinates(stage)
                with self.profiling.task(w, stage):
                    await_ = f"[&] {{ if (!begun) {{ {self._await()} }} }}" if stage.late else READY
                    for site in self.sites(stage):
                        write_contract(self, site, step.method, await_, (sides, tasks, workers))

    def _await(self) -> str:
        """In a stage that waits late."""
        return f"grid.await();{self.profiling.awaited()}"

    def sites(self, stage: Stage) -> Iterator[Site]:
        received = self._received(stage)
        for site in super().sites(stage):
            self._own |= {r.image.name for r in received}
            yield on_chip(site, received)

    def _received(self, stage: Stage) -> tuple[Received, ...]:
        return tuple(r for r in self.received if r.receive.stage == stage.name)

    def hands_on(self, tensor: Tensor) -> bool:
        return tensor.name in self.slots

    def hand_on(self, tensor: Tensor, index: Sequence[Expr], value: str) -> None:
        dense = Layout((Affine(()),) * len(tensor.shape), tensor.strides)
        write_send(self, self.slots[tensor.name], self.total(dense.offset(index)), value)

    def _ask_early(self, stage: Stage) -> None:
        """What the stage's early maps read, and the weights of its early reductions, before its first step."""
        self.busy, self.early, self.weights_early = 0, {}, {}
        self.early = {
            site.step: write_early(self, site, site.step.method, f"early_{number}")
            for number, site in enumerate(self.sites(stage))
            if isinstance(site.step.method, Map) and site.step.method.early
        }
        for number, site in enumerate(self.sites(stage)):
            if isinstance(site.step.method, Reduce) and site.step.method.early:
                wanted = weights_of(site.step, self.computes, self.weights)
                held = write_weights_early(self, site, wanted, f"weights_{number}")
                self.weights_early[site.step] = held
        self.busy = 0

    def _fill(self, kept: Kept, axes: tuple[str, ...]) -> None:
        """A function that brings on chip what this worker's task of the stage keeps there."""
        with self._tasks(_fill_name(kept), kept.stage, axes):
            for site in self.sites(kept.stage):
                if site.step.computes[0] == kept.resident.compute:
                    write_fill(self, kept, site.ranges, site.point)

    def _hold(self, kept: Kept, axes: tuple[str, ...]) -> None:
        """A function that brings that into the threads' registers, where they can have it there."""
        self.writer = Writer()
        with self.writer.open(
            "", GIVEN, fence=True
        ):  # to look at the step; nothing of it is written
            self._coordinates(kept.stage)
            sites = [
                s for s in self.sites(kept.stage) if s.step.computes[0] == kept.resident.compute
            ]
            held = held_through(self, kept, self._with_kept(sites[0]))
        if held is None:
            return
        self.in_registers[kept.image.name] = held
        with self._tasks(held.fill, kept.stage, axes, [held]):
            for site in self.sites(kept.stage):
                if site.step.computes[0] == kept.resident.compute:
                    write_hold(self, kept, self._with_kept(site), held)

    def packed(
        self,
        tensor: Tensor,
        first: Sequence[Expr],
        place: Place,
        width: int,
        *,
        aligned: bool = True,
    ) -> str:
        held = self.held_now.get(tensor.name) or self.in_registers.get(tensor.name)
        if held is None:
            return super().packed(tensor, first, place, width, aligned=aligned)
        return f"{held.name}.value[{held.number}]"

    @contextmanager
    def _tasks(
        self,
        name: str,
        stage: Stage,
        axes: tuple[str, ...],
        held: Sequence[Held] = (),
        *,
        late: bool = False,
    ) -> Generator[None]:
        """The function `name`; inside, a task's coordinates are variables.

        held: what it is given in registers. late: whether it waits for the stage's hand-off, with its task or without.
        """
        tasks, workers = math.prod(stage.grid), self.plan.launch.workers
        given = self.passed | {h.name: f"{h.kind}&" for h in held}
        if late:
            given |= {"grid": "const mt::GridBarrier"}
        with self.function(name, axes, given):
            w = self.writer
            w.define("scratch")
            w.write("char* const scratch = mt::ptx::shared_memory();")
            first = self._first_task(stage)
            if tasks <= workers:
                loop = f"if (const idx task = {first}; task < {tasks})"
            else:
                loop = f"for (idx task = {first}; task < {tasks}; task += {workers})"
            with w.open(loop, ["task"], fence=True):
                self._coordinates(stage)
                yield
            if late:
                with w.open("else", fence=True):
                    w.write(self._await())

    def _first_task(self, stage: Stage) -> str:
        """Text of this worker's first task; there may be none of that number."""
        worker, workers = "mt::ptx::anew(blockIdx.x)", self.plan.launch.workers
        if stage.first % workers == 0:
            return worker
        return f"({worker} + {workers - stage.first % workers}) % {workers}"

    def _coordinates(self, stage: Stage) -> None:
        """c0, c1, ...: the task's place in the row-major grid."""
        step = math.prod(stage.grid)
        for k, extent in enumerate(stage.grid):
            above = step
            step //= max(extent, 1)
            text = "task" if step == 1 else f"(uint32_t)task / {step}u"
            if above != math.prod(stage.grid):
                text = f"(uint32_t)task % {above}u" + (f" / {step}u" if step > 1 else "")
            self.writer.write(f"const idx c{k} = {text if extent > 1 else 0};")
            self.writer.define(f"c{k}")

    def step(self, site: Site) -> None:
        match site.step.method:
            case Map() as method:
                write_map(self, site, method)
            case Turn() as method:
                write_turn(self, site, method)
            case Interleave() as method:
                write_interleave(self, site, method)
            case Serial():
                write_serial(self, site)
            case Reduce(by_columns=True) as method:
                write_columns(self, site, method)
            case Reduce(outputs=outputs) as method if outputs > 1:
                write_side_by_side(self, site, method)
            case Reduce() as method:
                if self.await_ != READY:
                    self.writer.write(f"{self.await_}();")
                self.held_now = self.weights_early.get(site.step, {})
                write_reduce(self, self._with_kept(site), method)
                self.held_now = {}
            case Contract() as method:
                write_contract(self, site, method, self.await_)
            case Attend() as method:
                write_attend(self, site, method, self.await_)
            case HoldRows() as method:
                write_rows(self, site, method, self.await_)

    def _with_kept(self, site: Site) -> Site:
        """The step, reading on chip what is kept there."""
        anchor = site.anchor
        kept = tuple(k for k in self.kept if k.resident.compute == anchor.out.name)
        if not kept or not isinstance(anchor, Compute):
            return site
        self._own |= {k.image.name for k in kept}
        body = from_images(anchor.body, kept)
        return replace(site, anchor=msgspec.structs.replace(anchor, body=body))

    def enter(self, loop: Repeat) -> None:
        """Fills what the loop keeps on chip: before that nobody uses it, after it everyone may."""
        if loop.resident:
            self.writer.write("mt::block_barrier();")
            for k in self.kept:
                if k.resident in loop.resident:
                    with self.profiling.fill(self.writer, k.stage, loop.axis):
                        self.write_call(_fill_name(k))
            self.writer.write("mt::block_barrier();")
            for k in self.kept:
                if k.resident in loop.resident and (held := self.in_registers.get(k.image.name)):
                    self.writer.write(f"{held.kind} {held.name};")
                    self.write_call(held.fill)
        if loop.messages:
            if loop.handoff == "grid":
                self.writer.write("grid.wait();")
            self.writer.write("++tag;")

    def _kernel(self) -> None:
        threads = self.plan.launch.threads
        head = (
            f'extern "C" __global__ void __launch_bounds__({threads}, 1) '
            f"{ENTRY}(const __grid_constant__ Params p)"
        )
        w = self.writer
        with w.open(head, ["p", "workspace"], fence=True):
            w.write("char* const workspace = p.workspace;")
            w.write("mt::GridBarrier grid(p.sync);")
            if self.slots:
                w.write("unsigned tag = mt::last_tag(p.sync);")
            with self.profiling.run(w):
                self.walk(self.plan.body)
            if self.slots:
                w.write("grid.leave(tag);")
            elif any(stage.handoff == "grid" for stage, _ in self.stages()):
                w.write("grid.leave();")

    def handoff(self, stage: Stage) -> None:
        match stage.handoff:
            case "none":
                pass
            case "block":
                self.writer.write("mt::block_barrier();")
            case "grid":
                self.writer.write("grid.arrive();" if stage.late else "grid.wait();")

    def call(self, stage: Stage) -> None:
        self.write_call(stage.name)


def _definition(f: Function, given: Mapping[str, str], *, called: bool) -> str:
    inline, body = "__forceinline__", f.body
    if called:
        inline = "__noinline__"
        bases = [name for name, kind in f.parameters.items() if "*" in kind and name not in given]
        known = "".join(f"  mt::ptx::assume_global({name});\n" for name in bases)
        body = body.replace("{\n", "{\n" + known, 1)
    return f"static __device__ {inline} void {f.name}({', '.join(f.declarations)}) {body}"


def _fill_name(kept: Kept) -> str:
    return f"keep_{kept.image.name}"
