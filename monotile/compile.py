"""From a model to a kernel, on one page."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import msgspec

from monotile.analysis.work import work
from monotile.cache import Cache, key
from monotile.choice.chooser import MODEL, Chooser, Record
from monotile.choice.spec import Key, Spec, Value, load_spec
from monotile.codegen.source import Source
from monotile.compile_inputs import (
    Presets,
    SizedModel,
    ascending_for,
    captured_for,
    facts_for,
    initial_state,
    key_for,
    tf32_for,
)
from monotile.config import Options
from monotile.dump import Dump
from monotile.frontends.torch.callables import Model, arguments, as_module
from monotile.frontends.torch.capture import Captured, functional
from monotile.frontends.torch.export import Exported, export
from monotile.frontends.torch.sizes.ranges import classes_of, ranges_of
from monotile.frontends.torch.sizes.specialisations import specialised
from monotile.ir.program import state_names
from monotile.ir.verify import verify as verify_program
from monotile.passes.plans import PlanState
from monotile.passes.programs import ProgramState, guess
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
from monotile.runtime.fingerprint import parameters_of
from monotile.runtime.module import CompiledModule
from monotile.runtime.objects import flatten_objects
from monotile.runtime.progress import step
from monotile.runtime.random_state import begun
from monotile.size_classes import Class, start_or_skip, worthwhile
from monotile.targets.detect import detect_target
from monotile.targets.registry import backend_of
from monotile.targets.target import Target
from monotile.transform.iterate import Iterate
from monotile.transform.layout.align_axes import Order

Choices = Mapping[Key, Value] | str | Path | None


class Decided(TypedDict, total=False):
    """Decisions that the caller makes instead of the compiler."""

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
    given = Presets(
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
    dynamic_shapes: Any = None,
) -> CompiledModule:
    """`model` as a kernel that runs it in a loop, its results being its arguments again. Takes `args` and raises as `compile` does. The call's
    sizes (`dynamic_shapes`) are those of all iterations.

    What `iterate.watched` names is an example like any other here; a call may give it in host memory instead (`runtime.tensors.host_tensor`).
    """
    return _compiled(model, (args, None), target, options, Presets(iterate=iterate), dynamic_shapes)


def trace(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options = Options(),
) -> tuple[tuple[Trace, ...], tuple[Trace, ...]]:
    """A record of each pass of both tables of `monotile/pipeline.py`: Program to Program, and Program to Plan.

    It takes the arguments of `compile`, emits and builds nothing, and reads no cache. Raises as `compile` does.
    """
    with gc_paused():
        programs, plans = list[Trace](), list[Trace]()
        exported = export(model, args, kwargs, results=flatten_objects)
        _scheduled(exported, detect_target(target, options), options, MODEL, (programs, plans))
        return tuple(programs), tuple(plans)


def record(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options = Options(),
    chooser: Chooser = MODEL,
) -> Spec:
    """The choices of `chooser` in a compilation of the model, in the form that `compile` takes as `choices`. Other arguments and errors as
    there."""
    recorder = Record(chooser)
    with gc_paused():
        exported = export(model, args, kwargs, results=flatten_objects)
        _scheduled(exported, detect_target(target, options), options, recorder, ([], []))
    return recorder.spec


def floors(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options = Options(),
) -> tuple[StageFloor, ...]:
    """A lower bound of the time of each stage of the model's Plan. Arguments and errors as those of `trace`."""
    with gc_paused():
        exported = export(model, args, kwargs, results=flatten_objects)
        hardware = detect_target(target, options)
        lowered, plan = _scheduled(exported, hardware, options, MODEL, ([], []))
        return floors_of(plan, lowered.program, hardware)


def _scheduled(
    exported: Exported,
    target: Target,
    options: Options,
    chooser: Chooser,
    traces: tuple[list[Trace], list[Trace]],
) -> tuple[ProgramState, Plan]:
    """The model after all passes from Program to Program, and its Plan."""
    model = SizedModel(exported, functional(exported), {}, tf32_for(target, options))
    captured, orders = captured_for(model, target)
    given = Presets(facts=facts_for(exported, options), ascending=ascending_for(exported, target))
    first = initial_state(captured, orders, target, options, given)
    lowered = lower(replace(first, chooser=chooser), traces=traces[0])
    state = PlanState.of(lowered.program, target, options, lowered.context)
    return lowered, to_plan(state, traces=traces[1])


def _compiled(
    model: Model,
    call: tuple[Sequence[Any], Mapping[str, Any] | None],
    target: str,
    options: Options,
    given: Presets,
    dynamic_shapes: Any = None,
) -> CompiledModule:
    model, call = as_module(model), (arguments(call[0]), call[1])
    with gc_paused():
        hardware = detect_target(target, options)
        with step("capturing the model", shown=options.progress):
            exported = export(model, *call, results=flatten_objects, dynamic_shapes=dynamic_shapes)
        ascending = ascending_for(exported, hardware)
        given = replace(given, facts=facts_for(exported, options), ascending=ascending)
        alone = bool(given.plan or given.choices or options.arrange_parameters)
        with (
            step(f"compiling for {hardware.name}", shown=options.progress),
            ThreadPoolExecutor(os.cpu_count()) as pool,
        ):
            several, coarse = hardware.has.many_workers and not alone, bool(given.iterate)
            whole = Kernels(exported, hardware, options, given, pool)
            whole.begin(classes_of(ranges_of(exported), several)[-1])  # which takes longest
            more = (
                () if alone else specialised(exported, model, call, dynamic_shapes, flatten_objects)
            )
            hidden = msgspec.structs.replace(options, dump_dir=None)
            paths = [(e, Kernels(e, hardware, hidden, given, pool)) for e in more]
            paths.append((exported, whole))
            sized = partial(classes_of, several=several, paths=len(paths), coarse=coarse)
            built = [
                (k, start_or_skip(k.begin_all, sized(ranges_of(e)), e is exported))
                for e, k in reversed(paths)  # the last of which takes least
            ]
            *smaller, module = (
                k.module(*future.result()) for k, futures in reversed(built) for future in futures
            )
        module = module.beside(smaller)
        return module if isinstance(model, Exported) else module.follow(model)


Known = tuple[Artifact, Mapping[str, Any]]  # with the model's own tensors
_Name = tuple[tuple[str, int], ...]  # of a size class


class Kernels:
    """An exported model's kernels for its size classes: read from the cache, or built by the threads of `pool` while others are still being compiled.
    `options.dump_dir` gets the products of the first one."""

    def __init__(
        self, exported: Exported, target: Target, options: Options, given: Presets, pool: Executor
    ) -> None:
        self._exported, self._target, self._options = exported, target, options
        self._given, self._pool, self._cache = given, pool, Cache.of(options)
        self._key = key_for(exported, target, options, given)
        self._dump = Dump(options.dump_dir)
        self._lowered: dict[_Name, _Lowered] = {}
        self._guessed: dict[_Name, float] = {}
        self._begun: dict[_Name, Future[Known]] = {}

    def begin_all(self, classes: Sequence[Class]) -> list[Future[Known]]:
        """Builds the kernels that are worth their compilation; the last is for all sizes."""
        several = self._key and len(classes) > 1
        entry = key(self._key, "classes", [*map(dict, classes)]) if several else None
        stored = self._cache.get(entry) if entry else None
        if stored is not None:
            return [*map(self.begin, msgspec.json.decode(stored, type=list[dict[str, int]]))]
        found: list[Class] = []
        futures: list[Future[Known]] = []
        for most in worthwhile(classes, self._seconds):
            found.append(dict(most))
            futures.append(self.begin(most))
        if entry:
            self._cache.put(entry, msgspec.json.encode(found))
        return futures

    def begin(self, most: Class) -> Future[Known]:
        """The kernel for a size class, as a future."""
        name = tuple(most.items())
        if name not in self._begun:
            self._begun[name] = self._begin(most)
        return self._begun[name]

    def _begin(self, most: Class) -> Future[Known]:
        entry = key(self._key, dict(most)) if self._key and most else self._key
        found = self._stored(entry)
        if found is not None:
            done = Future[Known]()
            done.set_result(found)
            return done
        if most:
            self._seconds(most)  # known, so that the rest of what was lowered need not be kept
        lowered = self._lower(most)
        del self._lowered[tuple(most.items())]
        made = _emitted(lowered, self._target, self._options, self._given)

        def build() -> Known:
            binary = backend_of(self._target).build(made.source, self._target, self._options)
            artifact = made.artifact(binary=binary)
            if entry and (content := encode(artifact)):
                self._cache.put(entry, content)
            return artifact, made.parameters

        return self._pool.submit(build)

    def _stored(self, entry: str | None) -> Known | None:
        """The cached artifact with the model's own tensors; None if there is none."""
        stored = self._cache.get(entry) if entry and not self._options.dump_dir else None
        artifact = decode(stored) if stored else None
        parameters = parameters_of(self._exported, artifact.named) if artifact else None
        return None if artifact is None or parameters is None else (artifact, parameters)

    @functools.cached_property
    def _plain(self) -> Exported:
        return functional(self._exported)

    def _lower(self, most: Class) -> "_Lowered":
        name = tuple(most.items())
        if name not in self._lowered:
            tf32 = tf32_for(self._target, self._options)
            sized = SizedModel(self._exported, self._plain, most, tf32)
            dump, self._dump = self._dump, Dump(None)
            self._lowered[name] = _lowered(sized, self._target, self._options, self._given, dump)
        return self._lowered[name]

    def _seconds(self, most: Class) -> float:
        """The cost model's time of the kernel for a size class."""
        name = tuple(most.items())
        if name not in self._guessed:
            self._guessed[name] = guess(self._lower(most).state)
        return self._guessed[name]

    def module(self, artifact: Artifact, parameters: Mapping[str, Any]) -> CompiledModule:
        """The callable module. Call it in the thread that will launch the kernel, as this loads it."""
        if self._options.arrange_parameters:
            copied = artifact.specialised.gathered
            move(parameters, {n: o for n, o in artifact.orders.items() if n not in copied})
        return CompiledModule(artifact, begun(parameters, artifact.parameters))


class _Lowered(NamedTuple):
    """A model after the passes from Program to Program. orders: memory orders of tensors that are not read row-major."""

    captured: Captured
    orders: dict[str, Order]
    state: ProgramState
    dump: Dump


def _lowered(
    model: SizedModel, target: Target, options: Options, given: Presets, dump: Dump
) -> _Lowered:
    """Capture, Program to Program, verify."""
    captured, orders = captured_for(model, target)
    first = initial_state(captured, orders, target, options, given)
    dump.product("capture", first)
    state = lower(first, dump.product)
    verify_program(state.program)
    return _Lowered(captured, orders, state, dump)


class _Made(NamedTuple):
    """artifact: makes the Artifact from the binary that is built of the source. parameters: the model's own tensors."""

    source: Source
    artifact: Callable[..., Artifact]
    parameters: Mapping[str, Any]


def _emitted(model: _Lowered, target: Target, options: Options, given: Presets) -> _Made:
    """Program to Plan, verify, emit."""
    captured, orders, lowered, dump = model
    program, backend = lowered.program, backend_of(target)

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
    return _Made(source, artifact, captured.parameters)
