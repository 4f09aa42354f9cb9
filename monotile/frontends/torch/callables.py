"""Functions and methods as models, their arguments and their parameters' names."""

import functools
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType, ModuleType
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
_DEPTH = 3  # of objects and functions, one within the other, in which a function's modules are looked for


class Function(torch.nn.Module):
    """A function, or an object that can be called, as a module. Its submodules: the module that it is a method of ("module"), and those to which
    the names in its code, the object that it is a method of, and in turn what these refer to, refer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        _add(self, dict(_modules(function)))
        self.name = getattr(function, "__qualname__", type(function).__name__)
        if not isinstance(function, functools.partial) and not hasattr(function, "__code__"):
            call = type(function).__call__  # torch.export reads the code of `forward`
            function = MethodType(call, function) if inspect.isfunction(call) else function
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
    owner = getattr(function, "__self__", function)
    if isinstance(owner, torch.nn.Module):
        yield "module", owner
    if not isinstance(function, torch.nn.Module):
        yield from _held(_named_by(owner), _DEPTH)
        yield from _held(_named_by(inspect.unwrap(getattr(function, "__func__", function))), _DEPTH)


def _held(named: Mapping[str, Any], depth: int) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules among these values, and one for each value that refers to modules: it has these as submodules."""
    for name, x in named.items():
        if isinstance(x, torch.nn.Module):
            yield name, x
        elif isinstance(x, list | tuple | Mapping):
            items = x.items() if isinstance(x, Mapping) else enumerate(x)
            yield from _group(
                name, ((str(k), m) for k, m in items if isinstance(m, torch.nn.Module))
            )
        elif depth:
            yield from _group(name, _held(_named_by(x), depth - 1))


def _group(
    name: str, named: Iterable[tuple[str, torch.nn.Module]]
) -> Iterator[tuple[str, torch.nn.Module]]:
    if found := dict(named):
        group = torch.nn.Module()
        _add(group, found)
        yield name, group


def _add(to: torch.nn.Module, named: Mapping[str, torch.nn.Module]) -> None:
    """Adds submodules. It is in training mode if one of them is."""
    for name, module in named.items():
        free = name.replace(".", "_")
        to.add_module(f"{free}_" if hasattr(to, free) else free, module)
    to.training = any(m.training for m in to.children())


def _named_by(x: object) -> Mapping[str, Any]:
    """What an object's attributes, or the names in a function's code, refer to."""
    if isinstance(x, functools.partial):
        arguments = {f"arg{k}": y for k, y in enumerate(x.args)}
        return {**_named_by(x.func), **arguments, **x.keywords}
    if inspect.ismethod(x):
        return {"self": x.__self__}
    if inspect.isfunction(x):
        known = inspect.getclosurevars(x)
        return {**known.globals, **known.nonlocals}
    if isinstance(x, type | ModuleType | torch.Tensor | torch.nn.Module):
        return {}
    return getattr(x, "__dict__", {})
