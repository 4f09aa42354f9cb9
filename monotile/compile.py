"""From a model to a kernel, on one page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import msgspec

from monotile.analysis.pruning.facts import Facts, Zeros
from monotile.analysis.work import work
from monotile.cache import Cache, key
from monotile.choice.chooser import MODEL, Chooser, Record, Replay
from monotile.choice.spec import Key, Spec, Value, load_spec
from monotile.codegen.source import Source
from monotile.config import Options
from monotile.dump import Dump
from monotile.frontends.torch.callables import (
    Model,
    arguments,
    as_module,
    noted_parameters,
)
from monotile.frontends.torch.capture import Captured, functional, to_program
from monotile.frontends.torch.export import Exported, export
from monotile.frontends.torch.of_one import of_one
from monotile.frontends.torch.orders import in_memory_order
from monotile.frontends.torch.ranges import CLASSES, ranges_of, size_classes
from monotile.frontends.torch.tf32 import STRICT, Tf32, tf32_of
from monotile.frontends.torch.training import is_in_eval
from monotile.ir.program import state_names
from monotile.ir.verify import verify as verify_program
from monotile.passes.plans import PlanState
from monotile.passes.programs import ProgramState
from monotile.passes.table import Trace
from monotile.pipeline import lower, to_plan
from monotile.plan.check.given import check_given, load_plan
from monotile.plan.check.structure import verify as verify_plan
from monotile.plan.floors import StageFloor
from monotile.plan.floors import floors as floors_of
from monotile.plan.nodes import Plan
from monotile.runtime.arrange import compose_orders, move
from monotile.runtime.artifact import Artifact, decode, encode
from monotile.runtime.collector import gc_paused
from monotile.runtime.fingerprint import exported_key, parameters_of
from monotile.runtime.module import CompiledModule
from monotile.runtime.objects import flatten_objects
from monotile.runtime.progress import step
from monotile.runtime.random_state import begun
from monotile.runtime.zeros import ascending_in, zeros_of
from monotile.targets.detect import detect_target
from monotile.targets.registry import backend_of
from monotile.targets.target import Target
from monotile.transform.iterate import Iterate
from monotile.transform.layout.align_axes import Order

Choices = Mapping[Key, Value] | str | Path | None


@dataclass(frozen=True)
class Given:
    """What a compilation does not decide itself. plan: used instead of scheduling. choices: followed on the way. iterate: how the model becomes
    the body of a loop. facts: what is known of the parameters' values; nothing unless the model is to be specialised. ascending: as of
    `ProgramState`."""

    plan: Plan | None = None
    choices: Spec | None = None
    iterate: Iterate | None = None
    facts: Facts = field(default_factory=dict[str, Zeros])
    ascending: frozenset[str] = frozenset()


class Decided(TypedDict, total=False):
    """What a compilation is told to do, instead of deciding itself."""

    plan: Plan | str | Path | None
    choices: Choices


def compile(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options = Options(),
    dynamic_shapes: Any = None,
    specialise: bool = False,
    **decided: Unpack[Decided],
) -> CompiledModule:
    """`model` as one kernel, for arguments of the dtypes of `args` and `kwargs`, and of their shapes, but for what `dynamic_shapes` leaves to the call.

    model: in eval mode; or a function, such as a module's method, of which the modules that it calls are; or an ExportedProgram, which
    brings its own example arguments.
    target: "auto" (the GPU if there is one, else the CPU), "cpu", "cuda", or an architecture to compile for
    without owning one, such as "cuda:sm_80" or "cuda:sm_90a".
    dynamic_shapes: which dimensions the call decides, as `torch.export.export` takes it: `({1: Dim("length", min=1, max=512)},)`, and sums and
    multiples of such. Each needs a `max`, and is 1 at least; sizes that the model treats differently raise InputError in a call. A call's results
    have its own sizes; how long it takes goes with them. On a GPU classes of sizes have kernels of their own (`CompiledModule.classes`).
    specialise: remove channels, heads and features that the parameters' zeros make useless, as `Options(specialise=True)` does; what was removed is in
    `CompiledModule.specialised`.
    plan: used instead of scheduling: a Plan of this model for this target and number of workers, or a file that holds its JSON, such as
    `monotile inspect MODEL --show plan` prints.
    choices: followed where they say what to choose (`choice.spec`), or a file that holds their JSON, such as `monotile inspect MODEL --show choices`
    prints. What they do not say, the cost model chooses.
    Raises CaptureError, UnsupportedOperatorError, TargetError, ScheduleError, PlanError, ChoiceError or BuildError, all of
    them MonotileError.
    """
    options = msgspec.structs.replace(options, specialise=options.specialise or specialise)
    plan, choices = decided.get("plan"), decided.get("choices")
    given = Given(
        None if plan is None else load_plan(plan), None if choices is None else load_spec(choices)
    )
    return _compiled(model, (args, kwargs), target, options, given, dynamic_shapes)


def compile_loop(
    model: Model,
    args: Sequence[Any],
    iterate: Iterate,
    *,
    target: str = "auto",
    options: Options = Options(),
) -> CompiledModule:
    """`model` as a kernel that runs it in a loop, its results being its arguments again. Takes `args` and raises as `compile` does.

    What `iterate.watched` names is an example like any other here; a call may give it in host memory instead (`runtime.tensors.host_tensor`).
    """
    return _compiled(model, (args, None), target, options, Given(iterate=iterate))


def trace(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options = Options(),
) -> tuple[tuple[Trace, ...], tuple[Trace, ...]]:
    """What became of each pass of both tables of `monotile/pipeline.py`: Program to Program, and Program to Plan.

    It takes the arguments of `compile`, emits and builds nothing, and reads no cache. Raises as `compile` does.
    """
    with gc_paused():
        exported = export(model, args, kwargs, results=flatten_objects)
        return _traced(exported, detect_target(target, options), options, MODEL)


def record(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options = Options(),
    chooser: Chooser = MODEL,
) -> Spec:
    """What `chooser` chooses when the model is compiled: all that `compile` takes as `choices`. Other arguments and errors as there."""
    recorder = Record(chooser)
    with gc_paused():
        exported = export(model, args, kwargs, results=flatten_objects)
        _traced(exported, detect_target(target, options), options, recorder)
    return recorder.spec


def floors(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options = Options(),
) -> tuple[StageFloor, ...]:
    """The least that each stage of the model's Plan takes. Arguments and errors as those of `trace`."""
    with gc_paused():
        exported = export(model, args, kwargs, results=flatten_objects)
        hardware = detect_target(target, options)
        lowered, plan = _scheduled(exported, hardware, options, MODEL, ([], []))
        return floors_of(plan, lowered.program, hardware)


def _traced(
    exported: Exported, target: Target, options: Options, chooser: Chooser
) -> tuple[tuple[Trace, ...], tuple[Trace, ...]]:
    """What became of each pass of both tables."""
    programs, plans = list[Trace](), list[Trace]()
    _scheduled(exported, target, options, chooser, (programs, plans))
    return tuple(programs), tuple(plans)


def _scheduled(
    exported: Exported,
    target: Target,
    options: Options,
    chooser: Chooser,
    traces: tuple[list[Trace], list[Trace]],
) -> tuple[ProgramState, Plan]:
    """The model after all passes from Program to Program, and its Plan."""
    model = _Model(exported, functional(exported), {}, _tf32(target, options))
    captured, orders = _captured(model, target)
    given = Given(facts=_facts(exported, options), ascending=_ascending(exported, target))
    beginning = _beginning(captured, orders, target, options, given)
    lowered = lower(replace(beginning, chooser=chooser), traces=traces[0])
    state = PlanState.of(lowered.program, target, options, lowered.context)
    return lowered, to_plan(state, traces=traces[1])


def _compiled(
    model: Model,
    call: tuple[Sequence[Any], Mapping[str, Any] | None],
    target: str,
    options: Options,
    given: Given,
    dynamic_shapes: Any = None,
) -> CompiledModule:
    model, call = as_module(model), (arguments(call[0]), call[1])
    with gc_paused():
        hardware = detect_target(target, options)
        with step("capturing the model", shown=options.progress):
            exported = export(model, *call, results=flatten_objects, dynamic_shapes=dynamic_shapes)
            alone = given.plan or given.choices or options.arrange_parameters
            more = () if alone else of_one(exported, model, call, flatten_objects)
            every = [*more, exported]
        ascending = _ascending(exported, hardware)
        given = replace(given, facts=_facts(exported, options), ascending=ascending)
        several = hardware.has.many_workers and not alone
        *smaller, module = (
            m
            for e in every
            for m in _modules(e, hardware, options, given, _classes(e, several, len(every)))
        )
        module = module.beside(smaller)
        return module if isinstance(model, Exported) else module.follow(model)


def _classes(exported: Exported, several: bool, courses: int) -> Sequence[Mapping[str, int]]:
    """Of the sizes that it is for. courses: how often the model is exported: where a size of 1 is apart, it makes up for a class."""
    return size_classes(ranges_of(exported), CLASSES - (courses > 1)) if several else [{}]


def _tf32(target: Target, options: Options) -> Tf32:
    """Where products may be of TF32: nowhere without tensor cores."""
    return tf32_of(options.tf32) if "mma.sync" in target.instructions else STRICT


def _facts(exported: Exported, options: Options) -> Facts:
    """What a specialised model may rely on."""
    return zeros_of(exported.state_dict) if options.specialise else {}


def _ascending(exported: Exported, target: Target) -> frozenset[str]:
    """Parameters that the target's tensor cores may take for places among four: none are looked at where it has no such."""
    return ascending_in(exported.state_dict) if "wgmma.sp" in target.instructions else frozenset()


def _modules(
    exported: Exported,
    target: Target,
    options: Options,
    given: Given,
    classes: Sequence[Mapping[str, int]],
) -> Iterator[CompiledModule]:
    """The compiled model for each class of sizes, from the cache where it is there; the others are built at once."""
    cache, backend = Cache.of(options), backend_of(target)
    base = exported_key(exported, target, options, given.plan, given.choices, given.iterate)
    base = key(base, repr(noted_parameters(exported.graph_module))) if base else base
    base = key(base, given.facts) if base and given.facts else base
    base = key(base, sorted(given.ascending)) if base and given.ascending else base
    tf32 = _tf32(target, options)
    base = key(base, *tf32) if base and any(tf32) else base
    ranges = ranges_of(exported)
    base = key(base, "in eval mode") if base and is_in_eval(exported.graph_module) else base
    base = key(base, ranges) if base and (ranges.conditions or ranges.ones) else base
    keys = [key(base, dict(most)) if base and most else base for most in classes]
    found = [_stored(exported, k if not options.dump_dir else None, cache) for k in keys]
    missing = [i for i, x in enumerate(found) if x is None]
    if missing:
        with step(f"compiling for {target.name}", shown=options.progress):
            plain = functional(exported)
            made = [
                _compile(_Model(exported, plain, classes[i], tf32), target, options, given)
                for i in missing
            ]
            with ThreadPoolExecutor(len(made)) as pool:
                binaries = pool.map(lambda m: backend.build(m.source, target, options), made)
                for i, m, binary in zip(missing, made, binaries, strict=True):
                    artifact = m.artifact(binary=binary)
                    found[i] = artifact, m.captured.parameters
                    if (k := keys[i]) and (content := encode(artifact)):
                        cache.put(k, content)
    for artifact, parameters in (x for x in found if x is not None):
        if options.arrange_parameters:
            copied = artifact.specialised.gathered
            move(parameters, {n: o for n, o in artifact.orders.items() if n not in copied})
        yield CompiledModule(artifact, begun(parameters, artifact.parameters))


class _Model(NamedTuple):
    """exported: as it came. plain: in functional ATen. most: of symbols of dimensions, what the kernel is for at most. tf32: where products of
    float32 may be of TF32."""

    exported: Exported
    plain: Exported
    most: Mapping[str, int]
    tf32: Tf32


def _stored(
    exported: Exported, known: str | None, cache: Cache
) -> tuple[Artifact, Mapping[str, Any]] | None:
    """What the cache has, with the model's own tensors."""
    stored = cache.get(known) if known else None
    artifact = decode(stored) if stored else None
    parameters = parameters_of(exported, artifact.named) if artifact else None
    return None if artifact is None or parameters is None else (artifact, parameters)


class _Made(NamedTuple):
    """artifact: takes the binary that is built of the source."""

    captured: Captured
    source: Source
    artifact: Callable[..., Artifact]


def _compile(model: _Model, target: Target, options: Options, given: Given) -> _Made:
    """Capture, Program to Program, Program to Plan, verify, emit."""
    dump, backend = Dump(options.dump_dir), backend_of(target)

    captured, orders = _captured(model, target)
    beginning = _beginning(captured, orders, target, options, given)
    dump.product("capture", beginning)

    lowered = lower(beginning, dump.product)
    program = lowered.program
    verify_program(program)

    if given.plan is None:
        plan = to_plan(PlanState.of(program, target, options, lowered.context), dump.product)
        plan, source = backend.settle(program, plan, target, options)
        verify_plan(plan, program, target)
    else:
        plan = given.plan
        check_given(plan, program, target)
        source = backend.emit(program, plan, target, options)
    dump.plan(plan)
    dump.source(source, backend.suffix)

    moved = {n: compose_orders(orders.get(n), order) for n, order in lowered.orders.items()}
    artifact = partial(
        Artifact,
        target=target,
        plan=plan,
        outputs=program.results,
        source=source.text,
        entry=source.entry,
        checks=source.checks,
        signature=captured.signature.moved(lowered.results),
        constants={n: lowered.constants[n] for n in plan.weights if n in lowered.constants},
        states=state_names(program),
        watched=program.watched,
        tied=captured.tied,
        orders=orders | moved,
        profiled=options.profile,
        work=lowered.specialised.after if lowered.specialised.removed else work(captured.program),
        specialised=lowered.specialised.in_order(orders),
    )
    return _Made(captured, source, artifact)


def _captured(model: _Model, target: Target) -> tuple[Captured, dict[str, Order]]:
    """The model as tensor expressions, and the order in memory of those inputs and parameters that are not read row by row."""
    captured = to_program(model.exported, model.plain, model.most, model.tf32)
    return in_memory_order(captured, model.exported) if target.has.any_order else (captured, {})


def _beginning(
    captured: Captured, orders: Mapping[str, Order], target: Target, options: Options, given: Given
) -> ProgramState:
    """Where the passes begin."""
    return ProgramState(
        captured.program,
        options,
        target,
        captured.constants,
        frozenset(captured.parameters),
        chooser=_chooser(given.choices),
        iterate=given.iterate,
        facts={n: z.permuted(orders[n]) if n in orders else z for n, z in given.facts.items()},
        ascending=given.ascending - orders.keys(),
    )


def _chooser(choices: Spec | None) -> Chooser:
    """A new one, as it is for one compilation."""
    return MODEL if choices is None else Replay(choices)
