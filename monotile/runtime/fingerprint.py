"""The cache key of a compilation, computed right after `torch.export`.

The key covers the exported graph: every node with its operands, types and source lines, the calling convention, the types of
the parameters and which of them are tied, and the content of every constant. Parameter values are not part of it, because a
kernel does not depend on them. A value without an exact textual form makes the key None, and the model is compiled
without the cache. A key over the module before its export (source of its classes, attributes) would save a second on BERT, but what a
`forward` can reach (globals, registries, patched methods, the environment) cannot be enumerated.
"""

import hashlib
from collections.abc import Iterator

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram

from monotile.cache import key
from monotile.choice.spec import Spec, to_json
from monotile.config import Options
from monotile.ir.signature import RANDOM_STATE
from monotile.plan.nodes import Plan
from monotile.targets.registry import backend_of
from monotile.targets.target import Target
from monotile.transform.iterate import Iterate
from monotile.wrapped import real_of

_SCALARS = (bool, int, float, complex, str, type(None))
_WORDS = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class _Unknown(Exception):
    """A value without an exact textual form."""


def exported_key(
    exported: ExportedProgram,
    target: Target,
    options: Options,
    plan: Plan | None = None,
    choices: Spec | None = None,
    iterate: Iterate | None = None,
) -> str | None:
    """The cache key of compiling `exported`; None if it cannot be identified exactly. plan: used instead of scheduling. choices: recorded
    choices to follow. iterate: how the model becomes the body of a loop."""
    try:
        text = "\n".join(_program(exported))
    except (_Unknown, NotImplementedError):
        return None
    built_by = backend_of(target).toolchain()
    chosen = None if choices is None else to_json(choices)
    return key(
        "exported", str(torch.__version__), text, target, options, built_by, plan, chosen, iterate
    )


def parameters_of(
    exported: ExportedProgram, names: tuple[str, ...]
) -> dict[str, torch.Tensor] | None:
    """The model's tensors of these names, complex ones as the kernel reads them; None if one does not exist. The state of random numbers,
    which is not part of the model, is left out."""
    found: dict[str, torch.Tensor] = {}
    for name in (n for n in names if n != RANDOM_STATE):
        x = exported.state_dict.get(name)
        x = exported.constants.get(name) if x is None else x
        if not isinstance(x, torch.Tensor):
            return None
        found[name] = real_of(x)
    return found


def _program(exported: ExportedProgram) -> Iterator[str]:
    yield from _graph_module(exported.graph_module)
    yield str(exported.graph_signature)
    for tree in (exported.call_spec.in_spec, exported.call_spec.out_spec):
        if tree is None:
            raise _Unknown("call_spec")
        yield pytree.treespec_dumps(tree)
    yield str(exported.range_constraints)
    same: dict[tuple[int, torch.Size, tuple[int, ...]], int] = {}
    for name, x in sorted(exported.state_dict.items()):
        group = same.setdefault((x.data_ptr(), x.shape, x.stride()), len(same))
        yield f"{name} {_type(x)} {group}"
    for name, x in sorted(exported.constants.items()):
        if not isinstance(x, torch.Tensor):
            raise _Unknown(name)
        yield f"{name} {_type(x)} {_content(x)}"


def _graph_module(module: fx.GraphModule) -> Iterator[str]:
    names: dict[fx.Node, str] = {}
    for node in module.graph.nodes:
        names[node] = f"%{len(names)}"
        yield " ".join(
            (
                node.op,
                node.name,
                _target(node),
                _value(node.args, names),
                _value(node.kwargs, names),
                _value(node.meta.get("val"), names),
                str(node.meta.get("stack_trace")),
            )
        )
    for name, child in module.named_children():
        if not isinstance(child, fx.GraphModule):
            raise _Unknown(name)
        yield name
        yield from _graph_module(child)


def _target(node: fx.Node) -> str:
    if isinstance(node.target, str):
        return node.target
    if isinstance(node.target, OpOverload | HigherOrderOperator):
        return str(node.target)
    module = getattr(node.target, "__module__", None)
    name = getattr(node.target, "__qualname__", None)
    if module in ("_operator", "math") and name is not None:
        return f"{module}.{name}"
    raise _Unknown(str(node.target))


def _value(x: object, names: dict[fx.Node, str]) -> str:
    match x:
        case fx.Node():
            return names[x]
        case torch.Tensor():
            return _type(x)
        case tuple() | list():
            return f"{type(x).__name__}({', '.join(_value(v, names) for v in x)})"
        case dict():
            return f"{{{', '.join(f'{k!r}: {_value(v, names)}' for k, v in x.items())}}}"
        case slice():
            return f"slice({_value((x.start, x.stop, x.step), names)})"
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return str(x)
        case OpOverload():
            return str(x)
        case _ if type(x) in _SCALARS or isinstance(x, _WORDS):
            return repr(x)
        case _:
            raise _Unknown(repr(x))


def _type(x: torch.Tensor) -> str:
    return f"{x.dtype}{list(x.shape)}{list(x.stride())}{x.device}"


def _content(x: torch.Tensor) -> str:
    flat = x.detach().cpu().to_dense().resolve_conj().resolve_neg().flatten().view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()
