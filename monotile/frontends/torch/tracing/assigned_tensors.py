"""Tensors that a model assigns to its attributes in forward, `self.last = x`, for its next call.

A kernel updates memory, so the assignment is an update of the tensor that the attribute held before the call. PyTorch's exporter has the same rule for
buffers of the outermost module alone, where the new value is no argument or buffer itself; it drops all other assignments.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._functorch._aot_autograd import graph_capture
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.export import _trace
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from monotile.errors import CaptureError
from monotile.frontends.torch.numbers.constants import node_of, traced_constants
from monotile.frontends.torch.tracing.restored_state import containers_of

_TRACED = (FakeTensor, FunctionalTensor)
_CONVERT = (torch.ops.aten.to, torch.ops.aten._to_copy)
_HOOK = "register_buffer_assignment_hook"
_Contents = list[tuple[Any, Mapping[Any, Any]]]  # of containers, by key or position


@contextmanager
def assignments_are_updates(model: nn.Module) -> Generator[None]:
    """Within, a traced call of `model` ends with updates of what its attributes held before, also in lists, dicts and objects. Raises CaptureError
    in the trace for an attribute that was read, and is assigned a tensor of another type."""
    before: _Contents = []

    def begun(*_: Any) -> None:
        before[:] = _held(model) if get_proxy_mode() is not None else ()

    def ended(_: nn.Module, __: Any, found: Any) -> Any:
        return _ended(before, found) if before else found

    hooks = (
        model.register_forward_pre_hook(begun, prepend=True),
        model.register_forward_hook(ended, prepend=True),
    )
    with ExitStack() as stack:
        for hook in hooks:
            stack.callback(hook.remove)
        for module in (_trace, graph_capture):
            stack.enter_context(patch.object(module, _HOOK, _no_hook, create=True))
        yield


def _no_hook(*_: object) -> RemovableHandle:
    """Replaces what notes the assigned buffers."""
    return RemovableHandle(OrderedDict())


def _held(model: nn.Module) -> _Contents:
    found = ((x, _numbered(x)) for x in containers_of([model]) if not isinstance(x, set))
    return [(x, held) for x, held in found if any(map(_holds_tensors, held.values()))]


def _numbered(container: Any) -> Mapping[Any, Any]:
    return dict(container) if isinstance(container, dict) else dict(enumerate(container))


def _holds_tensors(value: Any) -> bool:
    """Whether it is a tensor, or a container of Python's with some."""
    if not isinstance(value, dict | list | tuple):
        return isinstance(value, torch.Tensor)
    return any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(value))


def _assigned(before: _Contents) -> Iterator[tuple[Any, torch.Tensor, torch.Tensor]]:
    """The name, the tensor before the call, and that after it."""
    for container, held in before:
        now = _numbered(container)
        for name, value in held.items():
            if now.get(name) is value:
                continue
            old, form = pytree.tree_flatten(value)
            new, other = pytree.tree_flatten(now.get(name))
            for x, y in zip(old, new, strict=True) if form == other else ():
                if isinstance(x, torch.Tensor) and not isinstance(x, nn.Parameter):
                    yield name, x, y


def _ended(before: _Contents, found: Any) -> Any:
    """The results of a call, after updates of the assigned tensors."""
    assigned = [(old, new) for name, old, new in _assigned(before) if _is_kept(name, old, new)]
    memory = {_memory(old) for old, _ in assigned}

    def apart(x: Any) -> Any:
        """A copy of what was in one of the updated tensors."""
        return x.clone() if isinstance(x, torch.Tensor) and _memory(x) in memory else x

    found = pytree.tree_map(apart, found) if assigned else found
    for old, new in [(old, apart(new)) for old, new in assigned]:
        old.copy_(new.detach() if new.requires_grad else new)
    return found


def _is_kept(name: Any, old: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether the next call may read `new` where `old` was."""
    if not isinstance(new, _TRACED) or (_memory(old), _type(old)) == (_memory(new), _type(new)):
        return False
    if _type(old) == _type(new):
        return isinstance(old, _TRACED) or _is_read(old)
    if _is_read(old) and not _is_converted(old, new):
        raise CaptureError(
            f"{name} is {_words(old)}, which forward reads, and is assigned {_words(new)} for the next call: a kernel updates it in place, so it"
            " keeps its shape and type"
        )
    return False


def _is_read(x: torch.Tensor) -> bool:
    node = node_of(x)
    constants = [c for c in traced_constants().values() if isinstance(c, torch.Tensor)]
    return bool(node.users) if node is not None else _memory(x) in map(_memory, constants)


def _is_converted(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether `new` is `old` in another type, as after `module.to(dtype)`, which each call converts."""
    before, after = node_of(old), node_of(new)
    if after is None or getattr(after.target, "overloadpacket", None) not in _CONVERT:
        return False
    return after.args[:1] == (before,)


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage] # it has no other name


def _type(x: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors of one shape, which no symbols have, and type."""
    sizes = [n if type(n) is int else object() for n in x.shape]
    return (*sizes, x.dtype, x.device)


def _words(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
