"""Runs a Program through a Plan and the CPU emitter, without PyTorch."""

import ctypes
from collections.abc import Mapping
from copy import copy

import numpy as np
from numpy.typing import NDArray

from monotile.config import Options
from monotile.ir.program import Program
from monotile.ir.verify import verify
from monotile.pipeline import schedule
from monotile.plan.nodes import Plan
from monotile.targets.cpu.build import build, load
from monotile.targets.cpu.emit import emit, settle
from monotile.targets.cpu.target import cpu_target
from monotile.targets.target import Target

Array = NDArray[np.generic]
TARGET = cpu_target(workers=2)


class Compiled:
    """A Program as a C function: call it with {input or part name: array}."""

    def __init__(
        self,
        program: Program,
        *,
        plan: Plan | None = None,
        target: Target = TARGET,
        options: Options | None = None,
    ) -> None:
        verify(program)
        options = options or Options(cache=False)
        self.program = program
        self.plan, self.source = (
            settle(program, schedule(program, target, options), target, options)
            if plan is None
            else (plan, emit(program, plan, target, options))
        )
        self.library = load(build(self.source.text, target, options).image)
        self.workspace = self._workspace()

    def twin(self) -> "Compiled":
        """The same function with a workspace of its own, for another thread."""
        other = copy(self)
        other.workspace = other._workspace()
        return other

    def _workspace(self) -> "NDArray[np.uint8]":
        launch = self.plan.launch
        scratch = -(-launch.shared_bytes // 256) * 256 * launch.workers
        return np.full(launch.workspace_bytes + scratch + 64, 0xCD, np.uint8)

    def status(self, values: Mapping[str, Array]) -> tuple[int, tuple[Array, ...]]:
        """What the function gives back, and the outputs, those of states as their memory holds them."""
        names = (*self.plan.inputs, *self.plan.weights)
        held = {n: np.array(values[n], order="C", copy=True) for n in names}
        inputs = [held[n] for n in self.plan.inputs]
        parts = [held[n] for n in self.plan.weights]
        outputs = [np.full(t.shape, 7, t.dtype.numpy) for t in self.program.results]
        everything = [*inputs, *outputs, *parts]
        pointers = (ctypes.c_void_p * max(1, len(everything)))(*(a.ctypes.data for a in everything))
        for k, name in enumerate(self.plan.inputs):
            if name in self.program.by_value:
                pointers[k] = int(inputs[k].view(np.uint64))
        at = ctypes.c_void_p(-(-self.workspace.ctypes.data // 64) * 64)
        status = self.library.monotile_run(pointers, at)
        tables = {w.tensor.name: w for w in self.program.weights if len(w.parts) > 1}
        states = (
            np.stack([held[p] for p in w.parts]).reshape(w.tensor.shape)
            if (w := tables.get(n)) is not None
            else held[n]
            for n in self.program.states
        )
        return status, (*outputs, *states)

    def __call__(self, values: Mapping[str, Array]) -> tuple[Array, ...]:
        status, outputs = self.status(values)
        assert status == 0, self.source.checks[status - 1]
        return outputs


def random_array(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: "np.dtype[np.generic]"
) -> Array:
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -5, 6, shape).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def random_values(program: Program, seed: int = 0) -> dict[str, Array]:
    """An array for every input and every part of a weight."""
    rng = np.random.default_rng(seed)
    values = {t.name: random_array(rng, t.shape, t.dtype.numpy) for t in program.inputs}
    for w in program.weights:
        shape = w.tensor.shape[w.table :]
        values |= {p: random_array(rng, shape, w.tensor.dtype.numpy) for p in w.parts}
    return values
