"""From a model to a kernel, on one page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monotile.analysis.work import work
from monotile.cache import Cache
from monotile.codegen.source import Source
from monotile.config import Options
from monotile.frontends.torch.capture import Captured, Exported, Model, capture, export
from monotile.frontends.torch.orders import in_memory_order
from monotile.ir.printer import show
from monotile.ir.program import Program
from monotile.ir.verify import verify as verify_program
from monotile.plan.check.structure import verify as verify_plan
from monotile.plan.nodes import Plan
from monotile.plan.printer import show as show_plan
from monotile.runtime.arrange import compose_orders, move
from monotile.runtime.artifact import Artifact, decode, encode
from monotile.runtime.collector import gc_paused
from monotile.runtime.fingerprint import exported_key, parameters_of
from monotile.runtime.module import CompiledModule
from monotile.runtime.objects import flatten_objects
from monotile.runtime.progress import step
from monotile.schedule.for_target import for_target
from monotile.schedule.schedule import schedule
from monotile.targets.detect import detect_target
from monotile.targets.registry import backend_of
from monotile.targets.target import Target
from monotile.transform.layout.parameters import arrange
from monotile.transform.legalise.stack_results import stack_results
from monotile.transform.pipeline import transform


def compile(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options = Options(),
) -> CompiledModule:
    """`model` as one kernel, for arguments of the shapes and dtypes of `args` and `kwargs`.

    model: in eval mode, or an ExportedProgram (which brings its own example arguments).
    target: "auto" (the GPU if there is one, else the CPU), "cpu", "cuda", or an architecture to compile for
    without owning one, such as "cuda:sm_80" or "cuda:sm_90a".
    Raises CaptureError, UnsupportedOperatorError, TargetError, ScheduleError or BuildError, all of them
    MonotileError.
    """
    with gc_paused():
        return _compiled(model, args, kwargs, detect_target(target, options), options)


def _compiled(
    model: Model,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    hardware: Target,
    options: Options,
) -> CompiledModule:
    """From the cache, if it is there."""
    with step("capturing the model", shown=options.progress):
        exported = export(model, args, kwargs, results=flatten_objects)
    key = exported_key(exported, hardware, options)
    cache = Cache.of(options)
    stored = cache.get(key) if key and not options.dump_dir else None
    artifact = decode(stored) if stored else None
    parameters = parameters_of(exported, artifact.parameters) if artifact else None
    if artifact is None or parameters is None:
        with step(f"compiling for {hardware.name}", shown=options.progress):
            artifact, captured = _compile(exported, hardware, options)
        parameters = captured.parameters
        if key and (content := encode(artifact)):
            cache.put(key, content)
    if options.arrange_parameters:
        move(parameters, artifact.orders)
    return CompiledModule(artifact, parameters)


def _compile(exported: Exported, target: Target, options: Options) -> tuple[Artifact, Captured]:
    """The pipeline: capture, transform, schedule, verify, emit, build."""
    dump = _Dump(options.dump_dir)

    captured, orders = capture(exported), {}
    if target.has.any_order:
        captured, orders = in_memory_order(captured, exported)
    dump.program("capture", captured.program)

    program, constants = transform(captured.program, captured.constants, options, dump.program)
    program, results = stack_results(program)
    if options.arrange_parameters:
        program, found = arrange(program, target, captured.parameters.keys() - {*program.states})
        orders |= {n: compose_orders(orders.get(n), order) for n, order in found.items()}
        dump.program("arrange", program)
    program, context = for_target(program, target, dump.program)
    verify_program(program)

    plan = schedule(program, target, options, context)
    dump.plan(plan)
    verify_plan(plan, program, target)

    backend = backend_of(target)
    source = backend.emit(program, plan, target, options)
    dump.source(source, backend.suffix)

    binary = backend.build(source, target, options)

    artifact = Artifact(
        target=target,
        plan=plan,
        outputs=program.results,
        source=source.text,
        entry=source.entry,
        checks=source.checks,
        binary=binary,
        signature=captured.signature.moved(results),
        constants={n: constants[n] for n in plan.weights if n in constants},
        states=program.states,
        tied=captured.tied,
        orders=orders,
        profiled=options.profile,
        work=work(captured.program),
    )
    return artifact, captured


class _Dump:
    """Writes every step's product to a folder, numbered in order; nothing where there is none."""

    def __init__(self, folder: str | None) -> None:
        self._folder = Path(folder) if folder else None
        self._count = 0

    def _write(self, name: str, text: str) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{self._count:02d}_{name}").write_text(text)
            self._count += 1

    def program(self, name: str, program: Program) -> None:
        if self._folder is not None:
            self._write(f"{name}.txt", show(program))

    def plan(self, plan: Plan) -> None:
        self._write("plan.json", plan.to_json())
        self._write("plan.txt", show_plan(plan))

    def source(self, source: Source, suffix: str) -> None:
        self._write(f"source{suffix}", source.text)
