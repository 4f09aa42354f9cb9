"""One graph of Dynamo: compiled at its first call, and again for other shapes and parameters."""

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import fx
from torch._dynamo import config as dynamo_config
from torch._guards import tracing
from torch._higher_order_ops.wrap import tag_activation_checkpoint as _checkpoint
from torch.amp.autocast_mode import (
    _enter_autocast,  # pyright: ignore[reportPrivateUsage]
    _exit_autocast,  # pyright: ignore[reportPrivateUsage]
)
from torch.fx.traceback import preserve_node_meta

from monotile.compile import compile
from monotile.config import Options
from monotile.dynamo.aliases import separate
from monotile.dynamo.parts import replace, split
from monotile.dynamo.sizes import NOTHING, dynamic_dims
from monotile.errors import (
    CaptureError,
    InputError,
    MonotileError,
    UnsupportedOperatorError,
)
from monotile.frontends.torch.export import export
from monotile.runtime.module import CompiledModule
from monotile.wrapped import NESTED, is_nested, plain_tensors

Run = Callable[..., Any]
_log = logging.getLogger("monotile")


class Settings(msgspec.Struct, frozen=True):
    """target: None: the device of the graph's tensors."""

    target: str | None
    options: Options


class Graph:
    """Runs like `module`: takes a flat list of arguments, returns its results.

    Parameters and buffers of the user's modules are read where they are. A call with other parameters of the same types
    compiles a new variant, as new shapes do, up to PyTorch's limit of recompilations.

    kernels: of the newest variant. reasons: why that is not a single kernel.
    """

    def __init__(self, module: fx.GraphModule, settings: Settings) -> None:
        self._module = module
        self.called = False
        self._whole = 0  # kernels of this graph itself, not of its parts
        self._parts: list[Graph] = []
        self._reasons: tuple[str, ...] = ()
        self._settings = settings
        self._held: list[int] | None = None
        self._free: list[int] = []
        self._numbers: list[int] = []
        self._variants: dict[tuple[object, ...], Run] = {}
        self._open = NOTHING
        results = module.graph.output_node().all_input_nodes
        # As with torch.enable_grad() in a model: called without gradients, it gives what is differentiated behind it.
        self._differentiable = any(_needs_grad(n.meta.get("example_value")) for n in results)

    def __call__(self, *args: Any) -> Any:
        self.called = True
        if self._differentiable or (torch.is_grad_enabled() and any(map(_needs_grad, args))):
            self._tell(
                0, ("it needs gradients, so it runs in PyTorch: Monotile compiles inference only",)
            )
            _warn_training()
            return self._module(*args)
        if any(map(is_nested, args)):
            self._tell(0, (f"it takes a nested tensor, so it runs in PyTorch: {NESTED}",))
            return self._module(*args)
        if self._held is None:
            self._numbers = _numbers(self._module)
            self._open = dynamic_dims(self._module)
            self._held = [k for k, x in enumerate(args) if k not in self._open.dims and _is_held(x)]
            own = {*self._held, *self._numbers, *self._open.numbers}
            self._free = [k for k in range(len(args)) if k not in own]
        most = self._open.most(args)
        key = (
            *(args[k].item() for k in self._numbers),
            *(self._open.type_of(k, args[k], most) for k in self._free),
            *(x.data_ptr() for k in self._held for _, x in plain_tensors("", args[k])),
        )
        run = self._variants.get(key)
        if run is None:
            run = self._variants[key] = self._variant(args)
        try:
            return run(*args)
        except InputError as e:  # such as arguments that share memory; nothing has run yet
            return self._eager(str(e))(*args)

    @property
    def kernels(self) -> int:
        return self._whole + sum(part.kernels for part in self._parts)

    @property
    def reasons(self) -> tuple[str, ...]:
        return (*self._reasons, *(r for part in self._parts for r in part.reasons))

    def _variant(self, args: Sequence[Any]) -> Run:
        limit = dynamo_config.recompile_limit
        if len(self._variants) >= limit:
            if len(self._variants) == limit:
                warnings.warn(
                    f"Monotile has compiled one graph for {limit} sets of shapes and parameters; others run in"
                    " PyTorch (torch._dynamo.config.recompile_limit)",
                    stacklevel=4,
                )
            return self._module
        # Dynamo's tracing has ended but its context is still set; export needs its own.
        with tracing(None), torch.no_grad():
            return self._compiled(args)

    def _compiled(self, args: Sequence[Any]) -> Run:
        try:
            cut = separate(self._module, args)
        except ValueError as e:
            return self._eager(str(e))
        if cut is None:
            return self._kernel(self._module, args)
        run, views = self._kernel(cut.kernel, args), cut.views
        return lambda *given: views(*given, *run(*given))

    def _kernel(self, module: fx.GraphModule, args: Sequence[Any]) -> Run:
        """One kernel; if that fails several, with PyTorch between them; if that fails PyTorch alone."""
        assert self._held is not None
        numbers = {k: _Number(args[k].item()) for k in self._numbers}
        free, sizes = self._free, self._open.numbers
        known = {k: (free.index(x.arg), x.dim) for k, x in sizes.items()}
        bound = _Bound(module, {k: args[k] for k in self._held}, (numbers, known), len(args))
        given = [args[k] for k in free]
        target = self._settings.target or _target(args)
        try:
            try:
                run = self._whole_kernel(bound, given, args, target)
                self._tell(1, ())
            except (UnsupportedOperatorError, CaptureError):
                run = self._split(bound, given)
        except MonotileError as e:
            return self._eager(str(e), module)
        except Exception as e:  # a bug in Monotile or torch.export: the model still has to run
            return self._eager(f"{type(e).__name__}: {e}. Please report this", module)
        return lambda *given: run(*(given[k] for k in free))

    def _whole_kernel(
        self, bound: "_Bound", given: Sequence[Any], args: Sequence[Any], target: str
    ) -> Run:
        """A kernel for all values of the dynamic sizes; if the model does not allow that, for the sizes of this call."""
        options = self._settings.options
        if self._open.dims:
            shapes = self._open.dynamic_shapes(self._free, self._open.most(args))
            try:
                return _reseeded(
                    compile(bound, given, target=target, options=options, dynamic_shapes=shapes)
                )
            except (UnsupportedOperatorError, CaptureError) as e:
                _log.info("a graph is compiled for one shape: %s", e)
                self._open = self._open._replace(dims={}, ranges={})
        return _reseeded(compile(bound, given, target=target, options=options))

    def _split(self, bound: "_Bound", given: Sequence[Any]) -> Run:
        found = split(export(bound, given))
        parts = {name: Graph(getattr(found.module, name), self._settings) for name in found.parts}
        for name, part in parts.items():
            replace(found.module, name, part)
        self._tell(0, found.reasons, *parts.values())
        _log.info("%d kernels instead of one:\n%s", len(parts), "\n".join(found.reasons))
        return found.module

    def _eager(self, reason: str, module: fx.GraphModule | None = None) -> Run:
        if self._reasons != (reason,):
            _log.warning("a graph runs in PyTorch: %s", reason)
        self._tell(0, (reason,))
        return module or self._module

    def _tell(self, kernels: int, reasons: tuple[str, ...], *parts: "Graph") -> None:
        self._whole, self._reasons, self._parts = kernels, reasons, [*parts]


class _Bound(torch.nn.Module):
    """`module` with some arguments bound as parameters and buffers, and some as Python numbers."""

    def __init__(
        self,
        module: fx.GraphModule,
        held: dict[int, torch.Tensor],
        numbers: "tuple[dict[int, _Number], dict[int, tuple[int, int]]]",
        count: int,
    ) -> None:
        """numbers: arguments that are numbers, and those that are dimensions of free ones."""
        super().__init__()
        self.module = module
        self._numbers, self._sizes = numbers
        self._places = {k: f"held_{k}" for k in held}
        self._count = count
        for k, x in held.items():
            if isinstance(x, torch.nn.Parameter):
                self.register_parameter(self._places[k], x)
            else:
                self.register_buffer(self._places[k], x)
        self.eval()

    def forward(self, *free: Any) -> Any:
        rest = iter(free)
        args: list[Any] = []
        for k in range(self._count):
            if k in self._sizes:
                arg, dim = self._sizes[k]
                args.append(free[arg].shape[dim])
            elif k in self._numbers:
                args.append(self._numbers[k])
            else:
                args.append(getattr(self, self._places[k]) if k in self._places else next(rest))
        with preserve_node_meta():  # the user's lines
            return _Running(self.module).run(*args)


class _Running(fx.Interpreter):
    """Runs a graph under the autocast that it enters, which PyTorch's exporter notes without: `float()` of what it converted would be that itself.
    What is checkpointed for a derivative runs as it is, as the exporter does not take it."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is _enter_autocast:
            mode = torch.autocast(*args)
            mode.__enter__()
            return mode
        if target is _exit_autocast:
            return args[0].__exit__(None, None, None)
        if target is _checkpoint:
            body, *given = args
            return _Running(body).run(*given)
        return super().call_function(target, args, kwargs)


class _Number(msgspec.Struct, frozen=True):
    """Stands for a tensor whose only use is `item()`."""

    value: float

    def item(self) -> float:
        return self.value


def _reseeded(module: CompiledModule) -> Run:
    """`module`, with a seed from PyTorch's generator for each call if it draws: graphs, variants of them and `torch.manual_seed` are then as in PyTorch."""
    state = module.random_state
    if state is None:
        return module

    def run(*args: Any) -> Any:
        state.random_()
        return module(*args)

    return run


def _numbers(module: fx.GraphModule) -> list[int]:
    """The arguments that are Python floats: Dynamo passes them as tensors and calls `item()`."""

    def is_item(node: fx.Node) -> bool:
        return (node.op, node.target) == ("call_method", "item")

    given = module.graph.find_nodes(op="placeholder")
    return [k for k, n in enumerate(given) if n.users and all(map(is_item, n.users))]


def _is_held(x: object) -> bool:
    """Whether `x` is a parameter or buffer of the user's modules that the kernel can read directly in every call."""
    if not isinstance(x, torch.Tensor):
        return False
    inner = (x for _, x in plain_tensors("", x))
    if not all(x.is_contiguous() and x.data_ptr() % 16 == 0 for x in inner):
        return False
    return isinstance(x, torch.nn.Parameter) or hasattr(x, "_dynamo_static_input_type")


def _needs_grad(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _target(args: Sequence[object]) -> str:
    on_gpu = any(isinstance(x, torch.Tensor) and x.device.type == "cuda" for x in args)
    return "cuda" if on_gpu else "cpu"


_warned: list[bool] = []


def _warn_training() -> None:
    if not _warned:
        _warned.append(True)
        warnings.warn(
            "Monotile compiles inference only: what needs gradients runs in PyTorch. Call the model under"
            " torch.no_grad()",
            stacklevel=3,
        )
