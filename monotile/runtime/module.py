"""What a user holds: the compiled model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from monotile.analysis.work import Work
from monotile.codegen.source import Source
from monotile.errors import InputError, TargetError
from monotile.plan.nodes import Plan
from monotile.plan.records import words
from monotile.runtime import saved
from monotile.runtime.arguments import Arguments, Results
from monotile.runtime.arrange import in_order
from monotile.runtime.artifact import Artifact
from monotile.runtime.profile import Profile, decode
from monotile.runtime.states import Held, copy_back, copy_in, refuse_shared
from monotile.runtime.tensors import from_numpy, plain
from monotile.targets.backend import Kernel
from monotile.targets.registry import backend_of
from monotile.targets.target import Target


class _Weights(msgspec.Struct, frozen=True):
    """One set of weights: whoever holds it may read through its pointers."""

    tensors: dict[str, torch.Tensor]
    pointers: tuple[int, ...]
    states: Held


class CompiledModule:
    """A model as one kernel. Call it as the model was called: same arguments, same results.

    The kernel reads the model's own parameters where they lie: a change in place (an optimiser's step,
    `copy_`, `load_state_dict`) is seen at the next call. A parameter whose memory is replaced
    (`module.to(...)`, `p.data = ...`) is not: give its new tensor to `load_parameters`. Parameters that were
    not dense when the model was compiled (on the CPU: not contiguous) were copied, and need `load_parameters` as well.
    With `Options(arrange_parameters=True)` they were moved, and a change in place is seen as before.

    Buffers and arguments that the model changes in place are changed where they lie, by the same launch. As in
    PyTorch, calls that change the same tensor must not overlap.

    Results never require a gradient, and share no memory with an argument, a parameter or each other, but for an
    argument that the model returns unchanged, which is given back itself, and a tensor that it returns twice. On a GPU the launch goes to PyTorch's current stream and may be
    captured in a CUDA graph. Threads and streams may call at once.
    """

    def __init__(
        self,
        artifact: Artifact,
        parameters: Mapping[str, torch.Tensor],
        *,
        device: torch.device | None = None,
    ) -> None:
        """parameters: by name, at least `artifact.parameters`. device: None: that of the parameters, else
        the current GPU for a CUDA target.

        Raises InputError for parameters on another device; TargetError where this machine's GPU or driver
        cannot run the kernel. With no GPU at all a CUDA artifact can still be looked at, but not called.
        """
        self._artifact = artifact
        backend = backend_of(artifact.target)
        self._device = device or backend.device([parameters[n] for n in artifact.parameters])
        inputs, outputs = artifact.plan.inputs, artifact.outputs
        self._arguments = Arguments(artifact.signature, inputs, self._device, artifact.orders)
        self._results = Results(artifact.signature, outputs, self._device)
        self._states = frozenset(artifact.states)
        self._obstacle = backend.obstacle(artifact.target, self._device)
        self._kernel: Kernel | None = None
        self._records: torch.Tensor | None = None
        if self._obstacle is not None:  # kept for `save`
            held = {name: parameters[name].detach() for name in artifact.parameters}
            self._weights = _Weights(held, (), Held({}, {}))
        else:
            given = {name: parameters[name].detach() for name in artifact.parameters}
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
        """The model's results. Raises InputError for arguments that do not fit what was compiled."""
        kernel = self._kernel
        if kernel is None:
            raise TargetError(self._obstacle)
        leaves = self._arguments.leaves(args, kwargs)
        inputs = self._arguments.tensors(leaves)
        outputs = self._results.empty()
        pointers = [x.data_ptr() for x in inputs]
        pointers += [x.data_ptr() for x in outputs]
        weights = self._weights  # held for the call: another thread may load new ones meanwhile
        if self._states:
            self._launch_stateful(kernel, pointers, weights, inputs, leaves)
        else:
            kernel.launch(pointers, weights.pointers)
        return self._results.assemble(outputs, leaves)

    def _launch_stateful(
        self,
        kernel: Kernel,
        pointers: list[int],
        weights: _Weights,
        inputs: list[torch.Tensor],
        leaves: Sequence[object],
    ) -> None:
        given = self._arguments.originals(leaves)
        names = self._artifact.plan.inputs
        numbers = [k for k, name in enumerate(names) if name in self._states]
        changed = [given[k] for k in numbers]
        refuse_shared(
            [*changed, *weights.states.own.items()],
            [
                *(x for k, x in enumerate(given) if k not in numbers),
            ],
        )
        others = [(n, x) for n, x in weights.tensors.items() if n not in weights.states.own]
        refuse_shared(changed, others)
        copy_in(weights.states)
        kernel.launch(pointers, weights.pointers)
        copy_back(
            weights.states, [(x, inputs[k]) for k, (_, x) in zip(numbers, changed, strict=True)]
        )

    def profile(self, *args: Any, **kwargs: Any) -> Profile:
        """Calls once and gives what the kernel wrote down: when each worker began and ended each task, and its waits.

        Call the model a few times before, so that caches and clocks are warm. Other calls must not overlap.
        Raises InputError where the model was compiled without `Options(profile=True)`.
        """
        self(*args, **kwargs)
        if self._records is None:
            raise InputError("compiled without records: compile with Options(profile=True)")
        return decode(self.plan, self._records.cpu().numpy().view(np.uint64))

    @property
    def kernels(self) -> int:
        """Launches a call makes."""
        return 1

    @property
    def plan(self) -> Plan:
        return self._artifact.plan

    @property
    def target(self) -> Target:
        return self._artifact.target

    @property
    def artifact(self) -> Artifact:
        """Everything but the parameters."""
        return self._artifact

    @property
    def work(self) -> Work:
        """Bytes and operations that a call cannot do without; `work.seconds(target)` is the time that they take."""
        return self._artifact.work

    @property
    def source(self) -> str:
        """The generated CUDA C++ or C."""
        return self._artifact.source

    @property
    def ptx(self) -> str:
        """Of a CUDA kernel; "" on the CPU."""
        return self._artifact.binary.ptx

    @property
    def cubin(self) -> bytes:
        """Of a CUDA kernel; empty on the CPU."""
        return self._artifact.binary.image if self.ptx else b""

    def save(self, path: str | Path) -> None:
        """Writes the kernel and the parameters as they are now to one file, for `monotile.load`.

        Raises InputError where the model's arguments or results have no stored form.
        """
        weights = self._weights
        saved.save(path, self._artifact, {**weights.tensors, **weights.states.own})

    def load_parameters(self, state: Mapping[str, torch.Tensor]) -> None:
        """New values without a new compilation: from now on the kernel reads these tensors.

        state: all of the parameters or some, by the names that the model's `state_dict` gives them; those that
        the kernel does not read are passed over. A tensor that lies as it did at compilation and on the kernel's device is
        read (and updated, if the model changes it) where it lies, any other is copied. A call captured in a CUDA graph keeps the old ones.
        Raises InputError where a shape or dtype differs; nothing is changed then.
        """
        if self._kernel is None:
            raise TargetError(self._obstacle)
        known = self._known(state)
        for name, x in known.items():
            old = self._weights.tensors[name]
            if x.shape != old.shape or x.dtype != old.dtype:
                raise InputError(
                    f"parameter {name}: expected {list(old.shape)} {old.dtype}, got {list(x.shape)}"
                    f" {x.dtype}. Compile again for parameters of another type"
                )
        here = {name: x.detach().to(self._device) for name, x in known.items()}
        moved = {name: self._alias(name, x) for name, x in here.items()}
        own = {name: here.get(name, x) for name, x in self._weights.states.own.items()}
        self._point({**self._weights.tensors, **moved}, own)

    def _known(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What the kernel reads of `state`, by the kernel's names. Raises InputError where tied names disagree."""
        out: dict[str, torch.Tensor] = {}
        first: dict[str, str] = {}
        for given, x in state.items():
            name = self._artifact.tied.get(given, given)
            if name not in self._artifact.parameters:
                continue
            if name in out and not _same(out[name], x):
                raise InputError(
                    f"parameters {first[name]} and {given} were one tensor when the model was compiled: give"
                    " both the same tensor, or compile again"
                )
            out[name], first[name] = x, given
        return out

    def _alias(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """`x` as the kernel reads it; keeps the memory alive even where the module's own tensor gets another."""
        if x.device != self._device:
            raise InputError(
                f"parameter {name} is on {x.device}, and the kernel runs on {self._device}. Move the model"
                f' there before you compile it, model.to("{self._device}"), or compile with target="{x.device.type}"'
            )
        order = self._artifact.orders.get(name)
        return plain(x.detach()) if order is None else in_order(x.detach(), order)

    def _point(self, held: dict[str, torch.Tensor], states: dict[str, torch.Tensor]) -> None:
        """states: of the buffers that are updated, as the caller has them."""
        others = [(name, x) for name, x in held.items() if name not in states]
        refuse_shared([*states.items()], others)
        pointers = tuple(held[name].data_ptr() for name in self._artifact.plan.weights)
        if self._records is not None:
            pointers += (self._records.data_ptr(),)
        self._weights = _Weights(held, pointers, Held(states, {n: held[n] for n in states}))

    def __repr__(self) -> str:
        launch = self.plan.launch
        return (
            f"CompiledModule({self.target.name}, 1 kernel, {launch.workers} workers of {launch.threads}"
            f" threads, {len(self.plan.weights)} weights, {launch.workspace_bytes} bytes of workspace)"
        )


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return (
        x is y or (x.data_ptr() == y.data_ptr() and x.stride() == y.stride()) or torch.equal(x, y)
    )


def load(path: str | Path) -> CompiledModule:
    """The compiled model that `CompiledModule.save` wrote, on the current GPU or the CPU.

    Its results' containers must be known: for a library's own output classes, import the library first.
    Raises InputError for a file that is none of Monotile's.
    """
    artifact, parameters = saved.load(path)
    backend = backend_of(artifact.target)
    device = backend.device(())
    if backend.obstacle(artifact.target, device) is None:
        parameters = {name: x.to(device) for name, x in parameters.items()}
    return CompiledModule(artifact, parameters, device=device)
