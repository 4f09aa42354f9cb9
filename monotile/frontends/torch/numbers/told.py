"""Numbers that Python asks of tensors, told while a model is exported: those of the example arguments.

A list of lengths, `int(lengths.max())`, `tolist()` or `numpy()` makes shapes, loops and lists that no graph can leave open. Such a model is run once as it is,
which hears what is asked, and is then traced with the same answers. The graph asks in every call whether they are still right (`known`),
so that other numbers end the kernel with an error instead of a wrong result. Told is only what integers, masks and parameters say: what a
network computes changes with every call.
"""

import copy
import logging
import sys
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from monotile.frontends.torch.branches.markers import ASSERTED, guard
from monotile.frontends.torch.numbers.whole import is_float, is_whole
from monotile.frontends.torch.origin import is_tracers, users_frame
from monotile.frontends.torch.tracing.unchanged import held_tensors, unchanged

_log = logging.getLogger("monotile")
_ASKING = ("item", "tolist", "numpy", "__int__", "__index__", "__float__")
MOST = 40  # characters of what is told, in a message
Place = tuple[str, int, int]  # file, line, and how often it was there before


class Told:
    """Answers by where they were asked for."""

    def __init__(self) -> None:
        self.answers: dict[Place, Any] = {}

    @contextmanager
    def heard(self) -> Generator[None]:
        """Within, a model runs as it is, and what it asks is kept."""
        places = _Places()

        def ask(x: torch.Tensor, plain: Callable[[torch.Tensor], Any], frame: FrameType) -> Any:
            found, place = plain(x), places.next(frame)
            if x.numel() and not x.is_complex():
                self.answers[place] = found
            return found

        with _asked_of(torch.Tensor, ask):
            yield

    @contextmanager
    def told(self) -> Generator[None]:
        """Within, a model that is traced is given the same."""
        places = _Places()

        def answer(x: torch.Tensor, plain: Callable[[torch.Tensor], Any], frame: FrameType) -> Any:
            if is_tracers(frame):
                return plain(x)
            found = self.answers.get(places.next(frame))
            if found is None or any(type(n) is not int for n in x.shape):
                return plain(x)
            flat = found.reshape(-1).tolist() if isinstance(found, np.ndarray) else found
            values: list[Any] = pytree.tree_leaves(flat)
            asked = x if isinstance(values[0], float) else x.to(torch.int64)
            guard(
                asked.reshape(-1),
                values,
                f"a number asked of the call that was {str(flat)[:MOST]} when compiled",
            )
            return copy.deepcopy(found)

        with _asked_of(FakeTensor, answer):
            yield


@contextmanager
def ranges_of_tensors() -> Generator[None]:
    """Within, `torch.arange` asks the tensors that it is given as ends and steps as Python does, where that is heard."""
    plain = torch.arange

    def arange(*args: Any, **named: Any) -> torch.Tensor:
        args, named = pytree.tree_map_only(torch.Tensor, _number, (args, named))
        return plain(*args, **named)

    with patch.object(torch, "arange", arange):
        yield


def _number(x: torch.Tensor) -> Any:
    return x.item() if x.ndim == 0 and not x.is_complex() else x


class _Places:
    """Counts how often each line asks."""

    def __init__(self) -> None:
        self._before: Counter[tuple[str, int]] = Counter()

    def next(self, frame: FrameType) -> Place:
        frame = users_frame(frame)
        line = frame.f_code.co_filename, frame.f_lineno
        self._before[line] += 1
        return *line, self._before[line]


@contextmanager
def _asked_of(
    kind: type[torch.Tensor],
    ask: Callable[[torch.Tensor, Callable[[torch.Tensor], Any], FrameType], Any],
) -> Generator[None]:
    """Within, `ask` answers for tensors of this class: it is given the tensor, PyTorch's own way to answer, and the frame that asks."""

    within = False

    def asking(plain: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        def asked(x: torch.Tensor) -> Any:
            nonlocal within
            if within:  # a torch function mode calls the method by its name again
                return plain(x)
            within = True
            try:
                return ask(x, plain, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            finally:
                within = False

        return asked

    with ExitStack() as stack:
        for name in _ASKING:
            stack.enter_context(patch.object(kind, name, asking(getattr(kind, name))))
        yield


def exported_as_told(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    trace: Callable[[], ExportedProgram],
    export: Callable[[Callable[[], ExportedProgram]], ExportedProgram],
) -> ExportedProgram | None:
    """What `export`, which traces the model once or more, gives with the numbers told that the model asks for when it is called so; None if it asks
    for none, fails all the same, or makes numbers of what it computes."""
    numbers = Told()
    if not _runs(model, args, kwargs, numbers) or not numbers.answers:
        return None

    def telling() -> ExportedProgram:
        with numbers.told():
            return trace()

    try:
        found = export(telling)
    except Exception as e:
        _log.debug("With the numbers of the example arguments: %s", e)
        return None
    return found if _may_be_told(found) else None


def _runs(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], numbers: Told
) -> bool:
    """Whether the model can be called; `numbers` hears what it asks. Nothing that the call changes stays changed."""
    leaves = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if any(isinstance(x, FakeTensor) or x.is_meta for x in leaves):
        return False
    before = [(x, x.detach().clone()) for x in held_tensors(model)]
    devices = {x.device for x in leaves if x.device.type == "cuda"}
    try:
        with unchanged(model), torch.no_grad(), torch.random.fork_rng(devices), numbers.heard():
            model(*copy.deepcopy(tuple(args)), **copy.deepcopy(dict(kwargs)))
    except Exception:
        return False
    finally:
        with torch.no_grad():
            for x, value in before:
                if x.shape == value.shape:
                    x.copy_(value)
    return True


def _may_be_told(exported: ExportedProgram) -> bool:
    """Whether no number depends on what floating-point inputs say, nor is one that is no integer and computed, unless no call can change it."""
    specs = exported.graph_signature.input_specs
    given = {s.arg.name for s in specs if s.kind is InputKind.USER_INPUT}
    fixed = {s.arg.name for s in specs if s.kind is InputKind.CONSTANT_TENSOR}
    floats: set[fx.Node] = set()
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if (
            node.op == "placeholder" and node.name in given and is_float(value)
        ) or not floats.isdisjoint(node.all_input_nodes):
            floats.add(node)
        told = node.target is guard and node.args[2] != ASSERTED
        if (
            told
            and (node in floats or _is_computed(node.args[0]))
            and not _is_constant(node, fixed)
        ):
            return False
    return True


def _is_constant(told: fx.Node, fixed: Collection[str]) -> bool:
    """Whether these are whole numbers that nothing goes into but the literals `fixed`."""
    values: Any = told.args[1]
    todo, seen = [told], set[fx.Node]()
    while todo:
        node = todo.pop()
        if node.op == "placeholder" and node.name not in fixed:
            return False
        todo += [n for n in node.all_input_nodes if n not in seen]
        seen.update(node.all_input_nodes)
    return all(float(v).is_integer() for v in values)


def _is_computed(node: Any) -> bool:
    """Whether these floating-point numbers are neither those of a parameter nor whole: how they are rounded may differ from one kernel to another."""
    if not is_float(node.meta.get("val")) or is_whole(node):
        return False
    while node.op == "call_function" and len(node.all_input_nodes) == 1:
        (node,) = node.all_input_nodes
    return node.op != "placeholder"
