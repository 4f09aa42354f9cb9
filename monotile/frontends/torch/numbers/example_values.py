"""Specialises a model for the numbers that Python reads from tensors, with the values of the example arguments.

`int(lengths.max())`, `tolist()` or `numpy()` determine shapes, loops and lists that no graph can leave symbolic. Such a model first runs as it is, which
records the values that are read, and is then traced with the same values. Guards check them in every call (`markers.guard`), so other values raise an error
instead of giving a wrong result. Only values that depend on integers, masks and parameters are fixed in this way: those that a network computes change
with every call.
"""

import copy
import logging
import sys
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from monotile.frontends.torch.branches.markers import ASSERTED, guard
from monotile.frontends.torch.numbers.constants import node_of
from monotile.frontends.torch.numbers.whole_numbers import is_float, is_whole_number
from monotile.frontends.torch.origin import is_tracers, users_frame
from monotile.frontends.torch.tracing.restored_state import held_tensors, state_restored

_log = logging.getLogger("monotile")
_READING = ("item", "tolist", "numpy", "__int__", "__index__", "__float__")
MAX_CHARACTERS = 40  # of values in a message
Site = tuple[str, int, int]  # file, line, and the number of reads there so far


class ExampleValues:
    """The values that were read from tensors, by site. replaying: whether any are replayed."""

    replaying: ClassVar[bool] = False

    def __init__(self) -> None:
        self.answers: dict[Site, Any] = {}

    @contextmanager
    def recorded(self) -> Generator[None]:
        """Within, a model runs as it is, and the values that it reads are recorded."""
        sites = _Sites()

        def reads(x: torch.Tensor, plain: Callable[[torch.Tensor], Any], frame: FrameType) -> Any:
            found, site = plain(x), sites.next(frame)
            if x.numel() and not x.is_complex():
                self.answers[site] = found
            return found

        with _intercepted(torch.Tensor, reads):
            yield

    @contextmanager
    def replayed(self) -> Generator[None]:
        """Within, a traced model reads the recorded values."""
        sites = _Sites()

        def answer(x: torch.Tensor, plain: Callable[[torch.Tensor], Any], frame: FrameType) -> Any:
            if is_tracers(frame):
                return plain(x)
            found = self.answers.get(sites.next(frame))
            if found is None or any(type(n) is not int for n in x.shape):
                return plain(x)
            flat = found.reshape(-1).tolist() if isinstance(found, np.ndarray) else found
            values: list[Any] = pytree.tree_leaves(flat)
            read = x if isinstance(values[0], float) else x.to(torch.int64)
            guard(
                read.reshape(-1),
                values,
                f"a number read from a tensor that was {str(flat)[:MAX_CHARACTERS]} when compiled",
            )
            return copy.deepcopy(found)

        with _intercepted(FakeTensor, answer), patch.object(ExampleValues, "replaying", True):
            yield


@contextmanager
def arange_reads_tensors() -> Generator[None]:
    """Within, `torch.arange` reads tensors that are its ends and steps by `item()`, which is recorded; of `t` and `t + 3` it reads nothing."""
    plain = torch.arange

    def arange(*args: Any, **named: Any) -> torch.Tensor:
        if len(args) == 2 and (count := _difference(*args)) is not None:
            found = args[0] + plain(count, device=named.get("device"))
            return found.to(named.get("dtype") or found.dtype)
        args, named = pytree.tree_map_only(torch.Tensor, _number, (args, named))
        return plain(*args, **named)

    with patch.object(torch, "arange", arange):
        yield


def _difference(start: Any, end: Any) -> int | None:
    """end - start of two traced tensors, if the latter is the former plus a known positive number."""
    first, last = ((node_of(x) if isinstance(x, torch.Tensor) and not x.ndim else None) for x in (start, end))  # fmt: skip
    if first is None or last is None or last.target is not torch.ops.aten.add.Tensor:
        return None
    more: Any = last.args[1]
    known = last.args[0] is first and type(more) is int and more > 0 and not last.kwargs
    return more if known and not is_float(start) else None


def _number(x: torch.Tensor) -> Any:
    return x.item() if x.ndim == 0 and not x.is_complex() else x


class _Sites:
    """Counts the reads at each line."""

    def __init__(self) -> None:
        self._before: Counter[tuple[str, int]] = Counter()

    def next(self, frame: FrameType) -> Site:
        frame = users_frame(frame)
        line = frame.f_code.co_filename, frame.f_lineno
        self._before[line] += 1
        return *line, self._before[line]


@contextmanager
def _intercepted(
    kind: type[torch.Tensor],
    reads: Callable[[torch.Tensor, Callable[[torch.Tensor], Any], FrameType], Any],
) -> Generator[None]:
    """Within, `reads` gives the values read from tensors of class `kind`. It receives the tensor, PyTorch's own method, and the frame that reads."""

    within = False

    def intercepting(plain: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        def read(x: torch.Tensor) -> Any:
            nonlocal within
            if within:  # a torch function mode calls the method by its name again
                return plain(x)
            within = True
            try:
                return reads(x, plain, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            finally:
                within = False

        return read

    with ExitStack() as stack:
        for name in _READING:
            stack.enter_context(patch.object(kind, name, intercepting(getattr(kind, name))))
        yield


def exported_with_example_values(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    trace: Callable[[], ExportedProgram],
    export: Callable[[Callable[[], ExportedProgram]], ExportedProgram],
) -> ExportedProgram | None:
    """The result of `export`, which calls `trace`, with the values that the model reads when called with these arguments. None if it reads none, if the
    export fails nevertheless, or if values depend on what the network computes."""
    numbers = ExampleValues()
    if not _runs(model, args, kwargs, numbers) or not numbers.answers:
        return None

    def replaying() -> ExportedProgram:
        with numbers.replayed():
            return trace()

    try:
        found = export(replaying)
    except Exception as e:
        _log.debug("With the numbers of the example arguments: %s", e)
        return None
    return found if _is_specialisable(found) else None


def _runs(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], numbers: ExampleValues
) -> bool:
    """Whether the model can be called; `numbers` records what it reads. All changes of the call are undone."""
    leaves = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if any(isinstance(x, FakeTensor) or x.is_meta for x in leaves):
        return False
    before = [(x, x.detach().clone()) for x in held_tensors(model)]
    devices = {x.device for x in leaves if x.device.type == "cuda"}
    try:
        with (
            state_restored(model),
            torch.no_grad(),
            torch.random.fork_rng(devices),
            numbers.recorded(),
        ):
            model(*copy.deepcopy(tuple(args)), **copy.deepcopy(dict(kwargs)))
    except Exception:
        return False
    finally:
        with torch.no_grad():
            for x, value in before:
                if x.shape == value.shape:
                    x.copy_(value)
    return True


def _is_specialisable(exported: ExportedProgram) -> bool:
    """Whether no recorded value depends on floating-point inputs or is a computed fraction, except for constants."""
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
        replayed = node.target is guard and node.args[2] != ASSERTED
        if (
            replayed
            and (node in floats or _is_computed(node.args[0]))
            and not _is_constant(node, fixed)
        ):
            return False
    return True


def _is_constant(replayed: fx.Node, fixed: Collection[str]) -> bool:
    """Whether these are whole numbers that depend only on the literals `fixed`."""
    values: Any = replayed.args[1]
    todo, seen = [replayed], set[fx.Node]()
    while todo:
        node = todo.pop()
        if node.op == "placeholder" and node.name not in fixed:
            return False
        todo += [n for n in node.all_input_nodes if n not in seen]
        seen.update(node.all_input_nodes)
    return all(float(v).is_integer() for v in values)


def _is_computed(node: Any) -> bool:
    """Whether these floating-point numbers are neither a parameter's nor whole: their rounding may differ between kernels."""
    if not is_float(node.meta.get("val")) or is_whole_number(node):
        return False
    while node.op == "call_function" and len(node.all_input_nodes) == 1:
        (node,) = node.all_input_nodes
    return node.op != "placeholder"
