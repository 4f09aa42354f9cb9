"""The CUDA target: one cooperative kernel that runs through the Plan, in CUDA C++ over `targets/cuda/device/`.

A worker is a block of threads. Every stage is a function over the block; hand-offs are barriers of the grid or of the block. Pointers
are passed by value in the launch's parameters (or as an array in memory where there are too many).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from monotile.analysis.affine import Affine
from monotile.codegen.address import Layout
from monotile.codegen.block import GIVEN, READY, BlockEmitter
from monotile.codegen.functions import Function
from monotile.codegen.ring import memory_type
from monotile.codegen.site import Site
from monotile.codegen.source import Source
from monotile.codegen.view import Views
from monotile.codegen.writer import Writer
from monotile.config import Options
from monotile.ir.expr import Expr, Tensor
from monotile.ir.program import Compute, Program
from monotile.kernels.reduction.cuda_pinned import Pinned, pinned_weights, read_pinned, write_fill
from monotile.kernels.reduction.cuda_register_weights import pinned_array, write_fill_registers
from monotile.kernels.registry import family_of
from monotile.plan.launch import Functions, Ring
from monotile.plan.nodes import Choose, Handoff, Plan, Repeat, Stage
from monotile.plan.places import replicas_in
from monotile.plan.streams import any_streams, beside_streams
from monotile.plan.walk import grid_waits, nodes_in
from monotile.targets.cuda.definitions import definition, head
from monotile.targets.cuda.messages import (
    Received,
    on_chip,
    received_of,
    slots_of,
    steps_before,
    write_receive,
    write_send,
)
from monotile.targets.cuda.supply import NAME as SUPPLY
from monotile.targets.cuda.supply import write_supply
from monotile.targets.target import Target

ENTRY = "monotile_kernel"
# Characters of all stages up to which the kernel is compiled as one function. Machine code of a separate function is a quarter longer, as
# ptxas cannot know that its warps arrive together, but ptxas takes a third of the time for it (docs/measurements.md).
WHOLE = 250_000
WARPGROUPS = ("mt::Kernel::WGMMA", "mt::Kernel::SPARSE")  # whose functions contain wgmma
PARAMETERS = 60  # at most, of a function that is called: each takes two registers, and ptxas refuses what has no place in them
UNIT = 16  # functions that are compiled together, where each is separate: reading the headers takes as long as a small function
APART = """\
#define MT_APART
#ifdef MT_UNIT  // the number of the part to compile
#define MT_HAS(unit) (MT_UNIT == unit)
#else
#define MT_HAS(unit) 1
#endif
"""
HEADER_BYTES = 16  # of the parameters before the pointers


def emit(program: Program, plan: Plan, target: Target, options: Options) -> Source:
    """The source of `plan`. Raises PlanError where an index may not fit its bits."""
    emitter = CudaEmitter(program, plan, target, options)
    emitter.write_stages()
    text = emitter.source(plan.launch.functions)
    emitter.check_width()
    return emitter.as_source(text)


def settle(program: Program, plan: Plan, target: Target, options: Options) -> tuple[Plan, Source]:
    """`plan` with `Launch.functions` and `Launch.index_bits`, and its source. The length of the functions is known only after emitting,
    as those with equal text are merged; so is whether all indices fit 32 bits. Only where these differ from the Plan's, the source is
    emitted again."""
    emitter = CudaEmitter(program, plan, target, options)
    emitter.write_stages()
    emitter.join(lean=plan.launch.functions == "separate")
    length = sum(len(f.body) for f in emitter.functions)
    functions: Functions = "inlined" if length <= WHOLE else "separate"
    text = emitter.source(functions)
    bits = 64 if emitter.overflow else 32
    launch = msgspec.structs.replace(plan.launch, functions=functions, index_bits=bits)
    settled = msgspec.structs.replace(plan, launch=launch)
    if bits != plan.launch.index_bits:
        return settled, emit(program, settled, target, options)
    return settled, emitter.as_source(text)


class CudaEmitter(BlockEmitter):
    """The kernel and one function a stage."""

    worker = outer = "blockIdx.x"

    def __init__(self, program: Program, plan: Plan, target: Target, options: Options) -> None:
        super().__init__(program, plan, target, options)
        self.views = Views(program, plan.places, plan.body)
        self.kept = pinned_weights(plan, self.computes)
        self.slots = slots_of(plan, self.computes)
        self.received = received_of(plan, self.slots)
        self.hot = frozenset(beside_streams(plan.body))
        images = {k.image.name: (k.place,) for k in (*self.kept, *self.received)}
        self.plan = msgspec.structs.replace(plan, places=plan.places | images)
        if self.slots:
            self.passed |= {"tag": "const unsigned"}

    def write_stages(self) -> None:
        """Emits the stages. Their text does not depend on `Launch.functions`."""
        for stage, axes in self.stages():
            own = [k for k in self.kept if k.stage.name == stage.name]
            for k in own:
                self._fill(k, axes[: axes.index(k.loop)])
                if k.resident.held:
                    self._hold(k, axes[: axes.index(k.loop)])
            self._stage(stage, axes)
        if (ring := self.plan.launch.ring) is not None:
            write_supply(self, ring)

    def source(self, how: Functions) -> str:
        """The whole translation unit, once the stages are emitted. how: `Launch.functions`."""
        launch = msgspec.structs.replace(self.plan.launch, functions=how)
        self.plan = msgspec.structs.replace(self.plan, launch=launch)
        self.join(lean=how == "separate")
        self.writer = Writer()
        self._kernel()
        if self._separate:
            return self._prologue() + self._parts()
        functions = "".join(definition(f, self.passed, called=self._called(f)) for f in self.functions)  # fmt: skip
        return self._prologue() + functions + self.writer.text

    def as_source(self, text: str) -> Source:
        """`text`, the whole, with the properties that the launch needs."""
        return Source(text, ENTRY, tuple(self.checks), self.units)

    @property
    def _separate(self) -> bool:
        return self.plan.launch.functions == "separate"

    @property
    def units(self) -> int:
        """The number of parts in which the source is compiled."""
        called = sum(map(self._called, self.functions))
        return 1 + -(-called // UNIT) if self._separate else 0

    def _parts(self) -> str:
        """The kernel with the functions inlined into it, and the functions that it calls. Without MT_UNIT it is one text like any other.
        The kernel's part defines none that it calls: NVVM would make a second function of each."""
        called = [f for f in self.functions if self._called(f)]
        inside = [f for f in self.functions if not self._called(f)]
        parts = [
            "".join(f"{head(f, apart=True)};\n" for f in called)
            + "".join(definition(f, self.passed, called=False) for f in inside)
            + self.writer.text
        ]
        for first in range(0, len(called), UNIT):
            some = called[first : first + UNIT]
            parts.append("".join(definition(f, self.passed, called=True, apart=True) for f in some))
        return "".join(f"#if MT_HAS({k})\n{text}#endif\n" for k, text in enumerate(parts))

    def _called(self, f: Function) -> bool:
        """Whether the kernel calls `f` instead of inlining it.

        This is not a choice, but the meaning of `Launch.functions` for a function with this content. The Plan has one value for all of
        them, as stages with equal text share one and the function that fills a loop's weights is no stage. A callee has none of the
        kernel's registers. Where functions are not compiled separately, ptxas serialises every wgmma if one is in a callee (C7510);
        where they are, if one is in the kernel (C7509). Attention by mma.sync needs all registers for itself; with direct operands it is
        cut so that it does not. A stage beside streams in a loop stays in the kernel: calls cost more than separate compilation gains.
        """
        apart = self._separate and not self.hot.issuperset(f.callers)
        if any("mt::Held" in k for k in f.parameters.values()) or len(f.parameters) > PARAMETERS:
            return False
        if any(kernel in f.body for kernel in WARPGROUPS):
            return apart
        alone = "mt::attend<" in f.body and "mt::Copy::DIRECT" not in f.body
        return alone or len(f.callers) > 1 or apart

    def _prologue(self) -> str:
        count = self.plan.pointers
        count += self.profiling.pointers
        inside = HEADER_BYTES + 8 * count <= self.target.parameter_bytes
        pointers = f"void* pointers[{max(count, 1)}]" if inside else "void* const* pointers"
        apart = APART if self._separate else ""
        launch = self.plan.launch
        computing = f"#define MT_COMPUTING {launch.threads}\n" if launch.ring else ""
        return (
            f"// Generated by Monotile for {self.target.name}.\n"
            "#pragma nv_diag_suppress 177\n"
            f"{apart}{computing}"
            '#include "cuda/device/monotile.cuh"\n'
            f"{self.profiling.include('cuda/device/profile.cuh')}\n"
            f"using idx = {'int64_t' if self.wide else 'int32_t'};\n"
            f"struct Params {{\n  char* workspace;\n  unsigned* sync;\n  {pointers};\n}};\n"
            "#define MT_POINTER(n) p.pointers[n]\n"
            "using mt_size = const int64_t*;  // not in global memory\n"
            "using mt_number = const double*;\n\n"
            "static __device__ __forceinline__ idx mt_checked(int64_t i, int64_t extent, unsigned number, unsigned& failed) {\n"
            "  const bool inside = (uint64_t)i < (uint64_t)extent;\n"
            "  if (!inside) failed = number + 1;\n"
            "  return inside ? (idx)i : 0;\n}\n"
            "#define MT_CHECK(i, extent, number) mt_checked((int64_t)(i), extent, number, mt_failed)\n\n"
        )

    def _stage(self, stage: Stage, axes: tuple[str, ...]) -> None:
        """A function that runs this worker's tasks in ascending order."""
        held = [
            self.in_registers[k.image.name]
            for k in self.kept
            if k.stage.name == stage.name and k.image.name in self.in_registers
        ]
        by_itself = family_of(stage.steps[0].method).write_tasks.get("cuda")
        if by_itself is not None and by_itself(self, stage, axes):
            return
        with self.tasks(stage.name, stage, axes, held, late=stage.late):
            w = self.writer
            received, sites = self._received(stage), self.sites(stage)
            if received:
                with self.profiling.receive(w):
                    self.write_prefetches(stage)
                    self._steps(
                        itertools.islice(sites, steps_before(stage, received, self.computes))
                    )
                    for r in received:
                        write_receive(self, r, stage)
                    w.write("mt::block_barrier();")
            with self.profiling.task(w, stage):
                if not received:
                    self.write_prefetches(stage)
                self.await_ = f"[&] {{ {self.await_text()} }}" if stage.late else READY
                self._steps(sites)

    def _steps(self, sites: Iterator[Site]) -> None:
        for site in sites:
            with self.writer.open("", fence=True):
                if site.step.barrier:
                    self.writer.write("mt::block_barrier();")
                self.step(site)
            self.await_ = READY

    def sites(self, stage: Stage, *, bounded: bool = True) -> Iterator[Site]:
        received, self.view = self._received(stage), self.views.of(stage)
        for site in super().sites(stage, bounded=bounded):
            self._own |= {r.image.name for r in received}
            yield on_chip(site, received)

    def _received(self, stage: Stage) -> tuple[Received, ...]:
        return tuple(r for r in self.received if r.receive.stage == stage.name)

    def hands_on(self, tensor: Tensor) -> bool:
        return tensor.name in self.slots

    def hand_on(self, tensor: Tensor, index: Sequence[Expr], value: str) -> None:
        dense = Layout((Affine(()),) * len(tensor.shape), tensor.strides)
        write_send(self, self.slots[tensor.name], self.total(dense.offset(index)), value)

    def write_prefetches(self, stage: Stage) -> None:
        """Emits the prefetches of the stage's maps and the weights of its reductions, before its first step."""
        self.early, self.prefetched = {}, {}
        for what in ("all", "large", "weights"):
            for number, site in enumerate(self.sites(stage, bounded=False)):
                if site.step.method.ahead("stage", what):
                    family_of(site.step.method).write_prefetch["cuda"](self, site, number)

    def _fill(self, kept: Pinned, axes: tuple[str, ...]) -> None:
        """A function that copies on chip the pinned weights of this worker's task of the stage."""
        with self.tasks(_fill_name(kept), kept.stage, axes):
            for site in self.sites(kept.stage, bounded=False):
                if site.step.computes[0] == kept.resident.compute:
                    write_fill(self, kept, site.ranges, site.point)

    def _hold(self, kept: Pinned, axes: tuple[str, ...]) -> None:
        """A function that loads these into the threads' registers, where they can be held there."""
        self.writer = Writer()
        with self.writer.open(
            "", GIVEN, fence=True
        ):  # only to inspect the step; its text is dropped
            self.write_coordinates(self.grid(kept.stage))
            sites = [
                s
                for s in self.sites(kept.stage, bounded=False)
                if s.step.computes[0] == kept.resident.compute
            ]
            held = pinned_array(self, kept, self.with_pinned(sites[0]))
        self.in_registers[kept.image.name] = held
        with self.tasks(held.fill, kept.stage, axes, [held]):
            for site in self.sites(kept.stage, bounded=False):
                if site.step.computes[0] == kept.resident.compute:
                    write_fill_registers(self, kept, self.with_pinned(site), held)

    def step(self, site: Site) -> None:
        family_of(site.step.method).write["cuda"](self, site)

    def with_pinned(self, site: Site) -> Site:
        """The step, reading pinned weights on chip."""
        anchor = site.anchor
        kept = tuple(k for k in self.kept if k.resident.compute == anchor.out.name)
        if not kept or not isinstance(anchor, Compute):
            return site
        self._own |= {k.image.name for k in kept}
        body = read_pinned(anchor.body, kept)
        return replace(site, anchor=msgspec.structs.replace(anchor, body=body))

    def enter(self, loop: Repeat) -> None:
        """Fills the loop's pinned weights: no stage reads them before, and any may after."""
        if loop.resident:
            self.writer.write("mt::block_barrier();")
            for k in self.kept:
                if k.resident in loop.resident:
                    with self.profiling.fill(self.writer, k.stage, loop.axis):
                        self.write_call(_fill_name(k))
            self.writer.write("mt::block_barrier();")
            known: dict[tuple[object, str], str] = {}  # registers, by the bytes on chip
            for k in self.kept:
                if k.resident in loop.resident and (held := self.in_registers.get(k.image.name)):
                    same = known.setdefault((k.resident.place, held.kind), held.name)
                    own = same == held.name
                    self.writer.write(f"{held.kind} {held.name};" if own else f"{held.kind}& {held.name} = {same};")  # fmt: skip
                    self.write_call(held.fill)
        if loop.receives and loop.handoff == "none" and not loop.resident:
            self.writer.write("mt::block_barrier();")
        if loop.messages:
            self.wait(loop.handoff)
            self.writer.write("++tag;")

    def leave(self, loop: Repeat) -> None:
        """Frees the on-chip memory of the loop's pinned weights and received messages."""
        if loop.resident or loop.receives:
            self.writer.write("mt::block_barrier();")

    def _kernel(self) -> None:
        threads = self.plan.launch.block_threads
        head = (
            f'extern "C" __global__ void __launch_bounds__({threads}, 1) '
            f"{ENTRY}(const __grid_constant__ Params p)"
        )
        w = self.writer
        with w.open(head, ["p", "workspace"], fence=True):
            w.write("char* const workspace = p.workspace;")
            w.write("mt::GridBarrier grid(p.sync);")
            if any(replicas_in(p) for n in self._scalars for p in self.plan.places[n]):
                w.write("char* const scratch = mt::ptx::shared_memory();")
            if self.slots:
                w.write("unsigned tag = mt::last_tag(p.sync);")
            if (ring := self.plan.launch.ring) is not None:
                kind = memory_type(ring, self.target)
                w.write(f"const {kind} ring{{mt::ptx::shared_memory() + {ring.offset}}};")
                w.write("ring.start();")
                self._roles(ring)
            else:
                self._compute()

    def _roles(self, ring: Ring) -> None:
        """The code of the computing threads and of the supplier. ptxas allocates more registers than a thread begins with in the branch
        of an `if`, not after it. A spilled register costs more than elsewhere: hand-offs invalidate the cache that holds it."""
        w, threads, group = self.writer, self.plan.launch.threads, ring.threads > ring.THREADS
        with w.open(f"if (threadIdx.x < {threads})", fence=True):
            if group:
                own = self.target.registers - ring.threads * ring.REGISTERS
                w.write(f"mt::ptx::take_registers<{own // threads // 8 * 8}>();")
            self._compute()
        with w.open("else", fence=True):
            if group:
                w.write(f"mt::ptx::give_registers<{ring.REGISTERS}>();")
                w.write(f"if (threadIdx.x >= {threads + ring.THREADS}) return;")
            self.write_call(SUPPLY)

    def _compute(self) -> None:
        w = self.writer
        with self.profiling.run(w):
            self.walk(self.plan.body)
        if self.slots:
            w.write("grid.leave(tag);")
        elif any(map(grid_waits, nodes_in(self.plan.body))):
            w.write("grid.leave();")

    def tell(self, node: Repeat | Choose, way: str) -> None:
        if self.plan.launch.ring is not None and any_streams(node):
            self.writer.write(f"ring.tell({way});")

    def wait(self, handoff: Handoff, *, late: bool = False) -> None:
        match handoff:
            case "none":
                pass
            case "block":
                self.writer.write("mt::block_barrier();")
            case "grid":
                self.writer.write("grid.arrive();" if late else "grid.wait();")

    def call(self, stage: Stage) -> None:
        if not self._separate:
            self.write_call(stage.name)
            return
        with self.writer.open("", fence=True):  # addresses of one call are not kept for another
            self.writer.write("char* const workspace = mt::ptx::recompute(p.workspace);")
            self.write_call(stage.name)


def _fill_name(kept: Pinned) -> str:
    return f"keep_{kept.image.name}"
