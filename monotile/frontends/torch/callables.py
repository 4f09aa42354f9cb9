"""Functions and methods as models, their arguments and their parameters' names."""

import functools
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.nn.parameter import is_lazy

from monotile.errors import CaptureError
from monotile.ir.signature import Parameter

Model = torch.nn.Module | ExportedProgram | Callable[..., Any]

_PARAMETERS = "monotile.parameters"  # in `GraphModule.meta`


class Function(torch.nn.Module):
    """A function as a module. Its submodules: the module that it is a method of ("module"), and those that it refers to by name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        for name, module in dict(_modules(function)).items():
            self.add_module(name if not hasattr(self, name) else f"{name}_", module)
        self.training = any(m.training for m in self.children())
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self.forward = function if _signature(function) else lambda *a, **k: function(*a, **k)


def name_of(model: torch.nn.Module) -> str:
    """The name of a model in messages: its class, or the function."""
    return model.name if isinstance(model, Function) else type(model).__name__


def as_module(model: Model) -> torch.nn.Module | ExportedProgram:
    """`model`, or a module that calls it. Raises CaptureError for TorchScript and for objects that cannot be called."""
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise CaptureError("torch.export takes no TorchScript: pass the module that it was made of")
    if isinstance(model, torch.nn.Module):
        if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
            raise CaptureError(
                "the model has lazy layers, which have no shapes yet: call it once before"
            )
        return model
    if isinstance(model, ExportedProgram):
        return model
    if isinstance(model, type):
        raise CaptureError(f"a model is an instance of {model.__name__}, not the class")
    if not callable(model):  # pyright: ignore[reportUnnecessaryComparison]
        raise CaptureError(
            f"a model is a torch.nn.Module, a function or an ExportedProgram, not of type {type(model).__name__}"
        )
    return Function(model)


def arguments(args: Sequence[Any] | torch.Tensor) -> Sequence[Any]:
    """Example arguments as a tuple; a single tensor is the only argument."""
    return (args,) if isinstance(args, torch.Tensor) else args


def check_script(model: torch.nn.Module) -> None:
    """Raises CaptureError if a model that fails contains a TorchScript module."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(f"{name} is TorchScript, which torch.export does not take: put the module there that it was made of")  # fmt: skip


def check_call(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises CaptureError if the arguments, with which `model` failed, do not match the signature of its `forward`."""
    signature = _signature(model.forward)
    try:
        if signature is not None:
            signature.bind(*args, **kwargs)
    except TypeError as e:
        raise CaptureError(
            f"the example arguments do not fit {name_of(model)}{signature}: {e}."
            " Give those of a call: monotile.compile(model, (x, ...), {name: y, ...})"
        ) from None


@contextmanager
def keywords_by_name(
    model: torch.nn.Module, kwargs: Mapping[str, Any], shapes: Any
) -> Generator[Any]:
    """Yields `shapes`, which are `dynamic_shapes`. Within, arguments that `forward` takes by `**kwargs` are named parameters, so that they may have dynamic
    shapes: torch.export supports none in `**kwargs`."""
    signature = _signature(model.forward)
    rest = [p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD] if signature else []  # fmt: skip
    if signature is None or not rest or not isinstance(shapes, Mapping):
        yield shapes
        return
    names = [n for n in kwargs if n not in signature.parameters]
    function = getattr(model.forward, "__func__", model.forward)
    of_function = inspect.signature(function)
    own = [p for p in of_function.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in names]
    known: Mapping[str, Any] = shapes
    within = known.get(rest[0].name) or {}
    flat = {n: s for n, s in known.items() if n != rest[0].name}
    with patch.object(function, "__signature__", of_function.replace(parameters=[*own, *more]), create=True):  # fmt: skip
        yield {**dict.fromkeys(names), **flat, **within}


def note_parameters(graph_module: fx.GraphModule, model: torch.nn.Module) -> None:
    """Records the parameters of the model whose graph this is."""
    signature = _signature(model.forward)
    taken = signature.parameters.values() if signature is not None else ()
    graph_module.meta[_PARAMETERS] = tuple(
        Parameter(
            p.name,
            p.kind is not p.KEYWORD_ONLY,
            p.default is None or type(p.default) in (bool, int, float, str),
            p.default if type(p.default) in (bool, int, float, str) else None,
        )
        for p in taken
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    )


def noted_parameters(graph_module: fx.GraphModule) -> tuple[Parameter, ...]:
    """The recorded parameters; empty if unknown."""
    return graph_module.meta.get(_PARAMETERS, ())


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # of a function that is not written in Python
        return None


def _modules(function: Callable[..., Any]) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules that a function may call, by their names in it."""
    if isinstance(function, functools.partial):
        held = {**function.keywords, **{f"arg{k}": x for k, x in enumerate(function.args)}}
        yield from ((n, x) for n, x in held.items() if isinstance(x, torch.nn.Module))
        function = function.func
    if isinstance(function, torch.nn.Module):
        yield "module", function
        return
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        yield "module", owner
    function = inspect.unwrap(getattr(function, "__func__", function))
    if inspect.isfunction(function):
        known = inspect.getclosurevars(function)
        for name, x in {**known.globals, **known.nonlocals}.items():
            if isinstance(x, torch.nn.Module):
                yield name, x
