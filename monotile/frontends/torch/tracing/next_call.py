"""Refuses models whose next call computes otherwise than their first, by Python state that forward changes: a count, a list that grows, an attribute that is
None before the first call.

A trace shows one call, and a kernel repeats it. Where the trace has changed such state, the model is traced once more with the changed state, and the graphs
are compared (`graph_difference.py`). They are equal for what is only written, and for constants that are kept for later calls.
"""

import reprlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import _pytree as pytree

from monotile.errors import CaptureError
from monotile.frontends.torch.numbers.constants import node_of
from monotile.frontends.torch.tracing.graph_difference import (
    Difference,
    StandIns,
    difference,
    steady_nodes,
)
from monotile.frontends.torch.tracing.restored_state import (
    Container,
    containers_of,
    contents_of,
    is_as,
    is_equal,
    is_traced,
    put_back,
    state_restored,
)

_NONE = object()
_MOST = 3  # changes, or items of a list, in a message


class NextCall:
    """What the last traced call of a model has changed in the model's Python state."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = list[tuple[Container, Any]]()  # containers, with their contents
        self._changes = list[tuple[Container, Any, Any]]()  # with those before and after the call
        self._named = dict[int, str]()  # the model's parameters and buffers in the trace, by id
        self._constant = dict[int, torch.Tensor]()  # kept, and the same in each call; by id

    @contextmanager
    def recorded(self) -> Generator[None]:
        """Within, traced calls of the model are recorded."""

        def begun(*_: Any) -> None:
            if get_proxy_mode() is not None:
                self._before = [(x, contents_of(x)) for x in containers_of([self._model])]
                self._named = {id(x): name for name, x in _tensors(self._model).items()}

        def ended(*_: Any) -> None:
            if get_proxy_mode() is not None:
                found = [(x, y, contents_of(x)) for x, y in self._before if not is_as(x, y)]
                self._changes = [x for x in found if list(_changed(*x[1:]))]
                self._constant = {id(x): x for x in _constants(self._model)} if self._changes else {}  # fmt: skip

        hooks = self._model.register_forward_pre_hook(begun), self._model.register_forward_hook(ended)  # fmt: skip
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def check(self, exported: ExportedProgram | None, again: Callable[[], ExportedProgram]) -> None:
        """Raises CaptureError if a further call of the model computes otherwise than `exported`, an export of it.

        again: exports it again. exported: None to have that made too, as `again` has other sizes."""
        if not self._changes:
            return
        exported = again() if exported is None else exported
        with state_restored(self._model):
            changes = list(self._told())
            made = self._enter()
            if made is None:
                return
            matter = [x for x in changes if not self._is_constant(x[2])]
            try:
                second = again()
            except Exception as e:
                if not matter:
                    return
                raise self._refusal(matter, Difference("", f" ({e})"), "") from e
            found = difference(exported, second, made)
            if found is None:
                return
            raise self._refusal(matter or changes, found, self._advice(second, again))

    def _told(self) -> Iterator[tuple[str, Any, Any]]:
        """The names of what the last traced call has changed, with the values before and after."""
        names = _names(self._model) if self._changes else {}
        for container, before, after in self._changes:
            name = names.get(id(container), type(container).__name__)
            if not isinstance(container, dict):
                yield name, before, after
                continue
            for key in _changed(before, after):
                full = f"{name}.{key}" if name else str(key)
                yield full, before.get(key, _NONE), after.get(key, _NONE)

    def _enter(self) -> StandIns | None:
        """Gives the model the state that the last traced call has left, with zeros in place of traced tensors. None where a size depends on data."""
        for container, before, after in self._changes:
            put_back(container, _left(contents_of(container), before, after))
        made, held = StandIns(), _tensors(self._model)

        def stand_in(x: Any) -> Any:
            if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
                return x.node.hint
            if not isinstance(x, torch.Tensor) or not is_traced(x):
                return x
            name = self._named.get(id(x))
            return held[name] if name in held else made.of(x, constant=id(x) in self._constant)

        for container in list(containers_of([self._model])):
            items = list(container.items() if isinstance(container, dict) else enumerate(container))
            for key, value in items:
                if not is_traced(value):
                    continue
                if isinstance(container, set) or any(map(_is_unknown, pytree.tree_leaves(value))):
                    return None
                container[key] = pytree.tree_map(stand_in, value)
        return made

    def _is_constant(self, x: Any) -> bool:
        leaves = [y for y in pytree.tree_leaves(x) if y is not None]
        return bool(leaves) and all(id(y) in self._constant for y in leaves)

    def _advice(self, second: ExportedProgram, again: Callable[[], ExportedProgram]) -> str:
        """Advice where only the first call differs from the others."""
        made = self._enter()
        try:
            settled = made is not None and difference(second, again(), made) is None
        except Exception:
            settled = False
        return ". If only the first call is to differ, call the model once before" if settled else ""  # fmt: skip

    def _refusal(
        self, changes: Sequence[tuple[str, Any, Any]], found: Difference, advice: str
    ) -> CaptureError:
        said = [f"{name} from {_words(old)} to {_words(new)}" for name, old, new in changes[:_MOST]]
        at = f", at {found.where}" if found.where else ""
        return CaptureError(
            f"forward changes {', '.join(said)}{', and more' if len(changes) > _MOST else ''}, and its next call computes"
            f" otherwise{at}{found.reason}. A kernel computes the same in each call: hold such state in tensors that forward"
            " updates (register_buffer), or take it as an argument and return it, or use"
            f' torch.compile(model, backend="monotile"){advice}'
        )


def _changed(before: Any, after: Any) -> Iterator[Any]:
    """The keys of a container, or its places, of which the next call may see that they have changed."""
    if isinstance(before, set):
        yield from before ^ after
        return
    one, other = (x if isinstance(x, dict) else dict(enumerate(x)) for x in (before, after))
    yield from (k for k in {**one, **other} if _differ(one.get(k, _NONE), other.get(k, _NONE)))


def _differ(old: Any, new: Any) -> bool:
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        return False  # an update
    if type(old) is type(new) and type(old) in (list, tuple, dict):
        one, form = pytree.tree_flatten(old)
        other, now = pytree.tree_flatten(new)
        return form != now or any(map(_differ, one, other))
    return not is_equal(old, new)


def _left(now: Any, before: Any, after: Any) -> Any:
    """The contents `now` of a container, changed as those before a call to those after it. Tensors that replace others are updates, and left out."""
    if isinstance(now, set):
        return after
    keys = set(_changed(before, after))
    if isinstance(now, dict):
        return {k: after[k] if k in keys else now[k] for k in after}
    return [x if k in keys or k >= len(now) else now[k] for k, x in enumerate(after)]


def _is_unknown(x: Any) -> bool:
    sizes = x.shape if isinstance(x, torch.Tensor) else (x,)
    return any(isinstance(n, torch.SymInt) and n.node.hint is None for n in sizes)


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _constants(model: nn.Module) -> Iterator[torch.Tensor]:
    """The traced tensors which the model holds that depend on its parameters, buffers and numbers alone."""
    found = dict[int, tuple[torch.Tensor, fx.Node]]()
    for container in containers_of([model]):
        for x in container.values() if isinstance(container, dict) else container:
            for y in pytree.tree_leaves(x) if is_traced(x) else ():
                node = node_of(y) if isinstance(y, torch.Tensor) else None
                if node is not None:
                    found[id(y)] = y, node
    if found:
        held = {node_of(x) for x in (*model.parameters(), *model.buffers())}
        known = steady_nodes(next(iter(found.values()))[1].graph.nodes, held)
        yield from (x for x, node in found.values() if node in known)


def _names(model: nn.Module) -> dict[int, str]:
    """What the model calls its containers, by their ids; an attribute's name is after that of its module and a dot."""
    found = dict[int, str]()
    for path, module in model.named_modules():
        parts = vars(module)
        found |= {id(parts): path, id(parts["_buffers"]): path}
        for name, value in parts.items():
            if name not in ("_modules", "_parameters"):
                for x in containers_of([value]):
                    found.setdefault(id(x), f"{path}.{name}" if path else name)
    return found


def _words(x: Any) -> str:
    """A value, for messages."""
    if x is _NONE:
        return "nothing"
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    if type(x) in (list, tuple) and len(x) <= _MOST:
        return f"[{', '.join(map(_words, x))}]"
    if type(x) in (list, tuple, dict, set):
        return f"a {type(x).__name__} of {len(x)}"
    return reprlib.repr(x) if x is None or isinstance(x, int | float | str) else f"a {type(x).__name__}"  # fmt: skip
