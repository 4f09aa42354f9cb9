"""Parameters that are tensor subclasses, such as torchao's quantised weights, become the plain tensors that they hold.

PyTorch's own tracer takes them apart: each operator on a subclass becomes what the subclass makes of it. The tensors inside stay where
they are, and are called as they are in the model: `0.weight.qdata` of the parameter `0.weight`.
"""

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, TensorArgument

from monotile.errors import CaptureError
from monotile.frontends.torch.origin import HOLDERS
from monotile.frontends.torch.rewriting.decompose import as_buffers, retraced
from monotile.frontends.torch.rewriting.lifted import lifted_once
from monotile.frontends.torch.rewriting.sharing import shared_as_run
from monotile.wrapped import is_wrapped, plain_tensors

_WAYS = (
    "where its operators are not there, choose another packing format when you quantise, install what it needs,"
    " or pack the original model with monotile.pack"
)
_HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def unwrapped(exported: ExportedProgram) -> ExportedProgram:
    """`exported` with plain tensors alone, functional; itself if it has no others. Raises CaptureError for what a subclass does not allow."""
    _refuse_arguments(exported)
    wrapped = dict(_wrapped(exported))
    if not wrapped:
        return exported
    try:
        with as_buffers(exported) if exported.constants.keys() & wrapped else nullcontext():
            plain = retraced(shared_as_run(lifted_once(exported)), {})
    except CaptureError:
        raise
    except Exception as e:  # of the subclass's own code
        raise CaptureError(
            f"{_named(wrapped)}: {str(e).strip() or type(e).__name__}. {_WAYS}"
        ) from e
    names = {
        old: new
        for name, x in wrapped.items()
        for old, new in zip(_traced_names(name, x), _names(name, x), strict=True)
    }
    _rename(plain, names)
    holders = {name: whole for whole, x in wrapped.items() for name in _names(whole, x)}
    nodes = plain.graph.find_nodes(op="placeholder")
    plain.graph_module.meta[HOLDERS] = {
        node.name: f"{whole}, of class {type(wrapped[whole]).__name__}"
        for node, spec in zip(nodes, plain.graph_signature.input_specs, strict=True)
        if (whole := holders.get(spec.target or ""))
    }
    for held in (plain.state_dict, plain.constants):
        for name, x in list(held.items()):
            if is_wrapped(x):
                del held[name]
            elif name in names:
                held[names[name]] = held.pop(name)
    return plain


def advice(model: torch.nn.Module) -> str:
    """Advice for a model that cannot be exported, if its parameters may be the reason; else ""."""
    state = (*model.named_parameters(), *model.named_buffers())
    kinds = {type(x).__name__: name for name, x in reversed(state) if is_wrapped(x)}
    if not kinds:
        return ""
    named = ", ".join(f"{name} is of class {kind}" for kind, name in kinds.items())
    return f". Parameter {named}: {_WAYS}"


def _wrapped(exported: ExportedProgram) -> Iterator[tuple[str, torch.Tensor]]:
    for name, x in (*exported.state_dict.items(), *exported.constants.items()):
        if isinstance(x, torch.Tensor) and is_wrapped(x):
            yield name, x


def _names(name: str, x: torch.Tensor) -> list[str]:
    return [n for n, _ in plain_tensors(name, x)]


def _traced_names(name: str, x: torch.Tensor) -> list[str]:
    """As PyTorch's tracer calls them: `torch.nn.utils.parametrize` does."""
    owner, _, own = name.rpartition(".")
    prefix = f"{owner}." if owner else ""
    count = len(_names(name, x))
    return [f"{prefix}parametrizations.{own}.original{k}" for k in range(count)]


def _named(wrapped: dict[str, torch.Tensor]) -> str:
    """The parameters, with their classes."""
    first, *more = (f"{name}, of class {type(x).__name__}," for name, x in wrapped.items())
    count = f" and {len(more)} more" if more else ""
    return f"{first}{count} cannot be taken apart"


def _refuse_arguments(exported: ExportedProgram) -> None:
    specs = exported.graph_signature.input_specs
    nodes = exported.graph.find_nodes(op="placeholder")
    for node, spec in zip(nodes, specs, strict=True):
        value = node.meta.get("val")
        if spec.kind not in _HELD and is_wrapped(value):
            raise CaptureError(
                f"argument {node.name} is a {type(value).__name__}: pass the tensors that it holds, and make it of them in the model"
            )


def _rename(plain: ExportedProgram, names: dict[str, str]) -> None:
    """Gives parameters of `plain`, and their placeholders, other names."""
    signature = plain.graph_signature
    nodes = plain.graph.find_nodes(op="placeholder")
    for node, spec in zip(nodes, signature.input_specs, strict=True):
        if (new := names.get(spec.target or "")) is not None:
            spec.target = new
            kind = "p" if spec.kind is InputKind.PARAMETER else "b"
            node._rename(f"{kind}_{new.replace('.', '_')}")  # pyright: ignore[reportPrivateUsage]
            spec.arg = TensorArgument(node.name)
    for spec in signature.output_specs:
        spec.target = names.get(spec.target or "", spec.target)
