"""The compiled model."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from monotile.analysis.pruning.specialised import Specialised
from monotile.analysis.work import Work
from monotile.codegen.source import Source
from monotile.errors import InputError, TargetError
from monotile.ir.signature import RANDOM_STATE
from monotile.plan.nodes import Plan
from monotile.plan.records import words
from monotile.runtime import saved
from monotile.runtime.arguments import Arguments, Results
from monotile.runtime.arrange import in_order
from monotile.runtime.artifact import Artifact
from monotile.runtime.panels import Copies
from monotile.runtime.parameter_values import Watch, gather
from monotile.runtime.profile import Profile, decode
from monotile.runtime.random_state import reseed
from monotile.runtime.replaced_parameters import ReplacementCheck
from monotile.runtime.sizes import NO_SIZES, CallSizes, SizeReader
from monotile.runtime.states import UpdatedBuffers, Weights, copy_back, copy_in, refuse_shared
from monotile.runtime.tensors import from_numpy, kernel_readable, same
from monotile.targets.backend import Kernel, Running
from monotile.targets.registry import backend_of
from monotile.targets.target import Target
from monotile.wrapped import all_plain


class CompiledModule:
    """A model as one kernel. It is called like the model, with the same arguments and results.

    The kernel reads the model's own parameters: the next call sees a change in place (a step of an optimiser, `copy_`, `load_state_dict`).
    It does not see a replaced tensor (`module.to(...)`, `p.data = ...`), of which a call warns: pass the new one to `load_parameters`.
    Parameters that were not dense when the model was compiled (on the CPU: not contiguous) were copied and need it too. With
    `Options(arrange_parameters=True)` their strides changed on a GPU, and changes in place are seen as before; on the CPU the kernel reads
    copies of some (`copied_bytes`).
    With `Options(specialise=True)` the kernel reads smaller copies of some parameters. Changes in place are still seen there, except those
    through `tensor.data` and of inference tensors. If one violates `specialised.relied`, the next call raises InputError.
    The launch also updates buffers and arguments in place. As in PyTorch, calls that update the same tensor must not overlap.
    Random numbers are drawn in the kernel, different ones in each call, captured ones too. Their state, `random_state`, starts from the
    seed of PyTorch's generator at compilation; `manual_seed` resets it. They are not PyTorch's numbers, but the same on all targets.
    Results never require a gradient. They share no memory with an argument, a parameter or each other, except that an argument that the
    model returns unchanged is returned itself, and a tensor returned twice is one tensor. On a GPU the launch goes to PyTorch's current
    stream and may be captured in a CUDA graph. Several threads and streams may call at once.
    """

    def __init__(
        self,
        artifact: Artifact,
        parameters: Mapping[str, torch.Tensor],
        *,
        device: torch.device | None = None,
    ) -> None:
        """parameters: by name, at least `artifact.parameters`. device: None: the device of the parameters or,
        for a CUDA target without any, the current GPU.

        Raises InputError for parameters on another device, TargetError if this machine's GPU or driver cannot run the
        kernel. Without a GPU, a CUDA artifact can be inspected but not called.
        """
        self._artifact = artifact
        self._smaller: tuple[CompiledModule, ...] = ()
        self._replacements: ReplacementCheck | None = None
        backend = backend_of(artifact.target)
        self._device = device or backend.device(
            [parameters[n] for n in artifact.parameters if n != RANDOM_STATE]
        )
        inputs, outputs = artifact.plan.inputs, artifact.outputs
        self._arguments = Arguments(
            artifact.signature, inputs, self._device, artifact.orders, artifact.watched
        )
        self._results = Results(artifact.signature, outputs, self._device)
        sizes = artifact.signature.sizes
        known = {n for n, _ in sizes.scalars}
        read = [n for n in inputs if n in known]
        sized = sizes.symbols or sizes.counted
        self._sizes = SizeReader(artifact.signature, read) if sized else None
        self._states = frozenset(artifact.states) - {RANDOM_STATE}  # no one else has that
        self._obstacle = backend.obstacle(artifact.target, self._device)
        self._kernel: Kernel | None = None
        given = {name: parameters[name].detach() for name in artifact.parameters}
        watched = {name: parameters[name].detach() for name in artifact.named}
        copied = {part for p in artifact.plan.panels for part in p.parts}
        self._watch = Watch.of(artifact.specialised, watched, copied)
        self._records: torch.Tensor | None = None
        if self._obstacle is not None:  # kept for `save`
            self._weights = Weights(given, (), UpdatedBuffers({}, {}), Copies((), {}))
        else:
            if RANDOM_STATE in given:
                given[RANDOM_STATE] = given[RANDOM_STATE].to(self._device)
            held = {name: self._alias(name, x) for name, x in given.items()}
            for name, array in artifact.constants.items():
                held[name] = from_numpy(array).to(self._device)
            if artifact.profiled:
                room = words(artifact.plan)
                self._records = torch.zeros(room, dtype=torch.int64, device=self._device)
            self._point(held, {name: given[name] for name in self._states if name in given})
            count = len(inputs) + len(outputs) + len(self._weights.pointers)
            source = Source(artifact.source, artifact.entry, artifact.checks)
            launch = artifact.plan.launch
            self._kernel = backend.load(
                artifact.binary, source, launch, count, artifact.target, self._device
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's results. Raises InputError for arguments that differ from the compiled ones."""
        if self._kernel is None:
            raise TargetError(self._obstacle)
        if self._replacements is not None:
            self._replacements.check(self)
        leaves = self._arguments.leaves(args, kwargs)
        if self._sizes is None:
            return self._run(self._kernel, leaves, NO_SIZES)
        symbols = self._sizes.symbols(leaves)
        fits = self._fitting(symbols)
        assert fits._kernel is not None
        own = fits._artifact.signature.sizes.own(symbols)
        sizes = NO_SIZES if fits._sizes is None else fits._sizes.read(leaves, own)
        return fits._run(fits._kernel, leaves, sizes)

    def _run(self, kernel: Kernel, leaves: Sequence[object], sizes: CallSizes) -> Any:
        """Launches the kernel for these leaves of the arguments."""
        inputs = self._arguments.tensors(leaves)
        outputs = self._results.empty()
        pointers = [x.data_ptr() for x in inputs]
        pointers += sizes.scalars  # behind the arguments: `SizeTensor`s
        pointers += [x.data_ptr() for x in outputs]
        if self._watch is not None and self._watch.changed():
            changed = self._watch.refresh(self._weights.tensors)
            self._weights.copies.refresh(changed, self._weights.tensors)
        weights = self._weights  # referenced during the call: another thread may load new ones
        if self._states:
            self._launch_stateful(kernel, pointers, weights, inputs, leaves)
        else:
            kernel.launch(pointers, weights.pointers)
        shapes = () if self._sizes is None else self._sizes.results(sizes, outputs)
        return self._results.assemble(outputs, leaves, shapes)

    def beside(self, smaller: "Sequence[CompiledModule]") -> "CompiledModule":
        """Adds kernels of the same model for smaller sizes, ascending: a call runs the first one that accepts its sizes. Returns the module."""
        self._smaller = tuple(smaller)
        if self._kernel is not None and (state := self.random_state) is not None:
            for module in self.classes:  # which continue one state
                if RANDOM_STATE in module._weights.tensors:
                    module._take({RANDOM_STATE: state})
        return self

    def follow(self, model: torch.nn.Module) -> "CompiledModule":
        """Makes calls warn if `model` no longer has the parameters that they read. Returns the module."""
        names = dict.fromkeys(n for m in self.classes for n in m._artifact.parameters)
        self._replacements = ReplacementCheck(model, names)
        return self

    @property
    def classes(self) -> "tuple[CompiledModule, ...]":
        """The kernels for size classes, ascending; this one is the last."""
        return (*self._smaller, self)

    def _fitting(self, symbols: Sequence[int]) -> "CompiledModule":
        return next((m for m in self._smaller if m._takes(symbols)), self)

    def _takes(self, symbols: Sequence[int]) -> bool:
        """Whether the kernel accepts these values of the model's symbols."""
        sizes = self._artifact.signature.sizes
        within = sizes.takes(symbols)
        return within and (self._sizes is None or self._sizes.holds(sizes.own(symbols)))

    def begin(self, *args: Any, **kwargs: Any) -> Running:
        """Begins a call and returns before the kernel is done: `finished` says whether it is, `result` waits for the call's results.

        Meanwhile the host may access the watched inputs with which the model was compiled (`compile_loop`), and nothing else that the
        kernel updates. On a GPU the call is in PyTorch's current stream like any other; on the CPU it has a separate thread, for which
        the process waits.
        """
        return backend_of(self.target).begin(lambda: self(*args, **kwargs), self._device)

    def _launch_stateful(
        self,
        kernel: Kernel,
        pointers: list[int],
        weights: Weights,
        inputs: list[torch.Tensor],
        leaves: Sequence[object],
    ) -> None:
        given = self._arguments.originals(leaves)
        names = self._artifact.plan.inputs
        numbers = [k for k, name in enumerate(names) if name in self._states]
        changed = [given[k] for k in numbers]
        rest = [x for k, x in enumerate(given) if k not in numbers]
        refuse_shared([*changed, *weights.states.own.items()], rest)
        others = [(n, x) for n, x in weights.tensors.items() if n not in weights.states.own]
        refuse_shared(changed, others)
        copy_in(weights.states)
        kernel.launch(pointers, weights.pointers)
        pairs = zip(numbers, changed, strict=True)
        copy_back(weights.states, [(x, inputs[k]) for k, (_, x) in pairs])

    def profile(self, *args: Any, **kwargs: Any) -> Profile:
        """Calls once and returns the kernel's records: when each worker began and ended each task, and its waits.

        Call the model a few times first, so that caches and clocks are warm. No other call may overlap.
        Raises InputError if the model was compiled without `Options(profile=True)`.
        """
        self(*args, **kwargs)
        leaves = self._arguments.leaves(args, kwargs)
        own = self if self._sizes is None else self._fitting(self._sizes.symbols(leaves))
        if own._records is None:
            raise InputError("the model was compiled without a profile: use Options(profile=True)")
        return decode(own.plan, own._records.cpu().numpy().view(np.uint64))

    @property
    def random_state(self) -> torch.Tensor | None:
        """int64 [2] on the kernel's device: the seed, and the number of calls so far. A call's numbers depend on nothing else; it adds 1
        to the latter. It may be read and written between calls. None if the model draws nothing."""
        found = (m._weights.tensors.get(RANDOM_STATE) for m in self.classes)
        return next((x for x in found if x is not None), None)

    def manual_seed(self, seed: int) -> "CompiledModule":
        """Resets the random numbers, if the model draws any, to `seed`, from -2**63 to 2**64 - 1. Returns the module."""
        if (state := self.random_state) is not None:
            reseed(state, seed)
        return self

    @property
    def kernels(self) -> int:
        """Launches per call."""
        return 1

    @property
    def plan(self) -> Plan:
        return self._artifact.plan

    @property
    def target(self) -> Target:
        return self._artifact.target

    @property
    def artifact(self) -> Artifact:
        """The result of the compilation without the parameters."""
        return self._artifact

    @property
    def work(self) -> Work:
        """The minimum bytes and operations of a call; `work.seconds(target)` is their time at peak rates."""
        return self._artifact.work

    @property
    def copied_bytes(self) -> int:
        """Bytes of the copies of parameters in the order in which the kernel reads them (`Options(arrange_parameters=True)` on a CPU)."""
        return self._weights.copies.nbytes

    @property
    def specialised(self) -> Specialised:
        """The channels, heads and features that `Options(specialise=True)` removed; printed, a table."""
        return self._artifact.specialised

    @property
    def source(self) -> str:
        """The generated CUDA C++ or C."""
        return self._artifact.source

    @property
    def ptx(self) -> str:
        """PTX of a CUDA kernel; "" on the CPU."""
        return self._artifact.binary.ptx

    @property
    def cubin(self) -> bytes:
        """Machine code of a CUDA kernel; empty on the CPU."""
        return self._artifact.binary.image if self.ptx else b""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copied or pickled module has separate parameters."""
        file = io.BytesIO()
        self.save(file)
        return _from_bytes, (file.getvalue(),)

    def save(self, path: str | Path | IO[bytes]) -> None:
        """Writes the kernel and the current parameters to one file, for `monotile.load`.

        Raises InputError if the model's arguments or results cannot be stored.
        """
        held: dict[str, torch.Tensor] = {}
        for module in self.classes:
            held |= {**module._weights.tensors, **module._weights.states.own}
            held |= {} if module._watch is None else module._watch.tensors
        saved.save(path, self._artifact, held, [m._artifact for m in self._smaller])

    def load_parameters(self, state: Mapping[str, torch.Tensor]) -> None:
        """Makes the kernel read other tensors, without recompiling.

        state: some or all parameters, by their names in the model's `state_dict`; names that the kernel does not read are ignored. Of a
        tensor subclass the kernel takes the tensors that it holds. A tensor on the kernel's device with the strides of compilation is
        read (and updated, if the model updates it) directly; any other is copied. A call captured in a CUDA graph keeps the old tensors.
        Raises InputError if a shape or dtype differs; nothing is changed then.
        """
        if self._kernel is None:
            raise TargetError(self._obstacle)
        # All are checked before one changes.
        found = [module._known(state) for module in self.classes]
        for module, known in zip(self.classes, found, strict=True):
            module._take(known)
        if self._replacements is not None:
            self._replacements.accept()

    def reads_equal(self, name: str, x: torch.Tensor) -> bool:
        """Whether `x` has the values that the kernel reads as parameter `name`."""
        held = self._weights.tensors.get(name)
        return held is None or torch.equal(self._alias(name, x), held)

    def _take(self, known: Mapping[str, torch.Tensor]) -> None:
        here = {name: x.detach().to(self._device) for name, x in known.items()}
        moved = {name: self._alias(name, x) for name, x in here.items()}
        if self._watch is not None:
            self._watch.take(here)
        own = {name: here.get(name, x) for name, x in self._weights.states.own.items()}
        self._point({**self._weights.tensors, **moved}, own)

    def _known(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors of `state` that the kernel reads, by its names. Raises InputError if tied names disagree, or a dtype differs."""
        out: dict[str, torch.Tensor] = {}
        first: dict[str, str] = {}
        for given, x in all_plain(state).items():
            name = self._artifact.tied.get(given, given)
            if name not in self._artifact.parameters:
                continue
            if name in out and not same(out[name], x):
                raise InputError(
                    f"parameters {first[name]} and {given} were one tensor when the model was compiled: pass"
                    " the same tensor for both, or compile again"
                )
            out[name], first[name] = x, given
        watch = self._watch
        for name, x in out.items():
            seen = {} if watch is None else watch.tensors
            old = seen.get(name, self._weights.tensors[name])
            if x.shape != old.shape or x.dtype != old.dtype:
                kinds = f"expected {list(old.shape)} {old.dtype}, got {list(x.shape)} {x.dtype}"
                raise InputError(f"parameter {name}: {kinds}. Compile again for parameters of another shape or type")  # fmt: skip
            if watch is not None:
                watch.check(name, x)
        return out

    def _alias(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """`x` as the kernel reads it; keeps its memory alive even if the module's tensor is replaced."""
        if x.device != self._device:
            raise InputError(
                f"parameter {name} is on {x.device}, and the kernel runs on {self._device}. Move the model"
                f' there before you compile it, model.to("{self._device}"), or compile with target="{x.device.type}"'
            )
        x = gather(x, self._artifact.specialised.gathered.get(name))
        order = self._artifact.orders.get(name)
        return kernel_readable(x.detach()) if order is None else in_order(x.detach(), order)

    def _point(self, held: dict[str, torch.Tensor], states: dict[str, torch.Tensor]) -> None:
        """states: the caller's tensors of the buffers that are updated."""
        others = [(name, x) for name, x in held.items() if name not in states]
        refuse_shared([*states.items()], others)
        copies = Copies(self._artifact.plan.panels, held)
        backend_of(self.target).hold([*held.values(), copies.memory])
        pointers = tuple(held[name].data_ptr() for name in self._artifact.plan.weights)
        pointers += tuple(x.data_ptr() for x in copies.tensors)
        if self._records is not None:
            pointers += (self._records.data_ptr(),)
        own = UpdatedBuffers(states, {n: held[n] for n in states})
        self._weights = Weights(held, pointers, own, copies)

    def __repr__(self) -> str:
        launch = self.plan.launch
        copied = f", {self.copied_bytes} bytes of copied weights" if self.copied_bytes else ""
        return (
            f"CompiledModule({self.target.name}, 1 kernel, {launch.workers} workers of {launch.threads}"
            f" threads, {len(self.plan.weights)} weights, {launch.workspace_bytes} bytes of workspace{copied})"
        )


def load(path: str | Path | IO[bytes]) -> CompiledModule:
    """Loads a compiled model written by `CompiledModule.save`, on the current GPU or the CPU.

    If its results are containers of a library's own classes, import that library first. Raises InputError for a file that Monotile did
    not write.
    """
    artifacts, parameters = saved.load(path)
    target = artifacts[-1].target
    backend = backend_of(target)
    device = backend.device(())
    if backend.obstacle(target, device) is None:
        parameters = {name: x.to(device) for name, x in parameters.items()}
    *smaller, whole = (CompiledModule(a, parameters, device=device) for a in artifacts)
    return whole.beside(smaller)


def _from_bytes(content: bytes) -> CompiledModule:
    return load(io.BytesIO(content))
