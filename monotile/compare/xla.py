"""JAX as a rival: a pure function under jax.jit, timed per call and in a loop on the device."""

import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from monotile.compare.clock import Run, Timed, Timer
from monotile.compare.forms import named
from monotile.compare.jobs import Absent, Network
from monotile.runtime.measure import Times, median_of
from monotile.runtime.reference import Call

_LOOP = 50  # calls per loop on the device
_QUEUED = 20  # calls in a row from the host
_LEAST = 5  # minimum number of timings of either


def lacks(network: Network) -> str | None:
    """Why there is no version of the network."""
    return None if network.xla else "there is no JAX version of this network"


def run(network: Network, model: torch.nn.Module, call: Call, device: torch.device) -> Run:
    """Raises Absent if JAX runs on another device."""
    return XlaRun(network, model, call, device.type)


def clock(run: Run, device: torch.device) -> Timer:
    """Per call, and in a loop on the device ("graph"), which is compiled first."""
    del device
    assert isinstance(run, XlaRun)
    run.prepare()

    def timer(seconds: float) -> Timed:
        call, loop = run.times(seconds)
        return Timed(call.median, call.samples, loop.median)

    return timer


def arrays(x: Any) -> Any:
    """The tensors of a dict or a list as JAX arrays of equal types."""
    jnp = importlib.import_module("jax.numpy")
    if isinstance(x, dict):
        return {name: arrays(value) for name, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [arrays(value) for value in x]
    dtype = str(x.dtype).removeprefix("torch.")
    wide = x.detach().float() if x.is_floating_point() and x.dtype != torch.float64 else x.detach()
    return jnp.asarray(wide.cpu().numpy(), dtype="int32" if dtype == "int64" else dtype)


class XlaRun:
    """Raises Absent if JAX is not installed, or not for this device."""

    def __init__(self, network: Network, model: torch.nn.Module, call: Call, kind: str) -> None:
        assert network.xla is not None
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        try:
            self._jax: Any = importlib.import_module("jax")
        except ImportError as error:
            raise Absent("JAX is not installed") from error
        backend = self._jax.default_backend()
        if (backend == "gpu") != (kind == "cuda"):
            raise Absent(f"the installed JAX runs on the {backend}")
        self._kind = kind
        function, parameters, inputs = named(network.xla)(model, *call)
        self._function: Callable[..., Any] = function
        self._given = (arrays(parameters), *arrays(inputs))
        self._jit = self._jax.jit(function)
        self._many: Any = None

    def __call__(self) -> list[torch.Tensor]:
        """The results, as tensors on the network's device."""
        jnp = importlib.import_module("jax.numpy")
        leaves = self._jax.tree_util.tree_leaves(self._jit(*self._given))
        wide = [x.astype(jnp.float32) if x.dtype.itemsize == 2 else x for x in leaves]
        host = [torch.from_numpy(self._jax.device_get(x).copy()) for x in wide]
        return [x.to(self._kind) for x in host]

    def prepare(self) -> None:
        """Compiles the loop. An optimisation barrier over inputs and results keeps XLA from hoisting the body out of it."""
        jax = self._jax
        lax = jax.lax

        def many(parameters: Any, *inputs: Any) -> Any:
            def once(_: Any, carry: Any) -> Any:
                given, _ = carry
                return lax.optimization_barrier((given, self._function(*given)))

            first = (parameters, *inputs)
            shapes = jax.eval_shape(self._function, *first)
            zeros = jax.tree_util.tree_map(
                lambda s: importlib.import_module("jax.numpy").zeros(s.shape, s.dtype), shapes
            )
            return lax.fori_loop(0, _LOOP, once, (first, zeros))[1]

        self._many = jax.jit(many)
        self._jax.block_until_ready(self._many(*self._given))

    def times(self, seconds: float) -> tuple[Times, Times]:
        """Wall-clock time until the last result of several calls is ready: per ordinary call, and per call in the loop."""
        return (
            median_of(lambda: self._queued(self._jit, _QUEUED), seconds, _LEAST),
            median_of(lambda: self._queued(self._many, 1) / _LOOP, seconds, _LEAST),
        )

    def _queued(self, run: Callable[..., Any], repeat: int) -> float:
        start = time.perf_counter()
        found = None
        for _ in range(repeat):
            found = run(*self._given)
        self._jax.block_until_ready(found)
        return (time.perf_counter() - start) / repeat
