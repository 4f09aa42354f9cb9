"""Merges the paths of a model into one graph.

Each path is an exported graph with a `fork` marker wherever Python asked for the truth value of a tensor. Two paths with the same answers so far are
equal up to the next fork; the rest of both is put between markers there (`markers.py`).
"""

import copy
import operator
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    InputKind,
    InputSpec,
    TensorArgument,
)
from torch.utils import _pytree as pytree
from torch.utils._sympy.symbol import SymT, symbol_is_type

from monotile.errors import CaptureError, InternalError
from monotile.frontends.torch.branches.markers import branch, fork, join
from monotile.frontends.torch.branches.unequal_sizes import UnequalSizes, reserve_symbols
from monotile.frontends.torch.numbers.returned_numbers import note_chosen
from monotile.frontends.torch.origin import origin
from monotile.frontends.torch.rewriting.lifted import with_graph
from monotile.frontends.torch.tracing.restored_state import is_equal

Answers = tuple[bool, ...]  # of a path: the truth value at each fork


def merge(paths: Mapping[Answers, ExportedProgram]) -> ExportedProgram:
    """One graph without forks. Raises CaptureError if the paths' results differ in number or type."""
    if len(paths) == 1:
        (exported,) = paths.values()
        return exported
    for exported in paths.values():
        _drop_facts(exported.graph)
    first, *others = paths.values()
    for exported in others:
        _adopt(exported, detect_fake_mode(_values(first.graph)))
    reserve_symbols([e.graph for e in paths.values()])
    return _Merged(paths).exported()


def _values(graph: fx.Graph) -> list[Any]:
    return [n.meta.get("val") for n in graph.nodes]


def _drop_facts(graph: fx.Graph) -> None:
    """Erases assertions about data-dependent sizes, and moves what is computed of sizes to its first use: PyTorch writes both where a size is defined, which
    the paths share, though one alone may need them."""
    for node in reversed(graph.nodes):
        fact = node.target is torch.ops.aten._assert_scalar.default and _of_data(node.args[0])
        numbers = _is_of_numbers(node)
        if fact or (numbers and not node.users):
            graph.erase_node(node)
        elif numbers:
            min(node.users).prepend(node)


def _is_of_numbers(node: fx.Node) -> bool:
    """Whether it is an operator of Python or PyTorch on numbers, or reads a size."""
    kind = getattr(node.target, "__module__", "")
    named = getattr(node.target, "__name__", "").startswith("sym_")
    numbers = kind == "_operator" or (kind == "torch" and named)
    size = node.target is torch.ops.aten.sym_size.int
    return node.op == "call_function" and (numbers or size) and node.target is not operator.getitem


def _text(node: fx.Node) -> str:
    """The expression that a node of numbers gives, with its type; its name where that is unknown."""
    value = node.meta.get("val")
    symbolic = isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
    return (
        f"{type(value).__name__} {value.node.expr}" if symbolic else f"{id(node.graph)} {node.name}"
    )


def _check_same(node: fx.Node, known: fx.Node | None) -> None:
    """Raises CaptureError if `node` is not what another path has at its place: `known`, or a fork."""
    if known is None:
        same = node.target is fork
    else:
        same = node.op == known.op and (node.op == "get_attr" or node.target is known.target)
    if not same:
        raise CaptureError(_UNSTEADY + _at(node))


def _of_data(x: Any) -> bool:
    """Whether a condition is of data-dependent sizes."""
    if not isinstance(x, fx.Node):
        return False
    value = x.meta.get("val")
    if not isinstance(value, torch.SymInt | torch.SymBool):  # of `sym_not` it may be missing
        return not isinstance(value, torch.Tensor) and any(map(_of_data, x.all_input_nodes))
    symbols: Any = value.node.expr.free_symbols
    return any(symbol_is_type(s, SymT.UNBACKED_INT) for s in symbols)


def _adopt(exported: ExportedProgram, mode: Any) -> None:
    """Moves the fake tensors of a graph, which belong to the fake mode of its trace, to the mode `mode`."""

    def adopted(x: FakeTensor) -> torch.Tensor:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)

    graphs = [m.graph for m in exported.graph_module.modules() if isinstance(m, fx.GraphModule)]
    with mode:
        for node in (n for graph in graphs for n in graph.nodes):
            if "val" in node.meta:
                node.meta["val"] = pytree.tree_map_only(FakeTensor, adopted, node.meta["val"])


class _Merged:
    """Builds the merged graph."""

    def __init__(self, paths: Mapping[Answers, ExportedProgram]) -> None:
        self._paths = paths
        self._first = next(iter(paths.values()))
        self._graph = fx.Graph()
        self._root = copy.copy(self._first.graph_module)  # with the subgraphs of all paths
        self._constants = dict(self._first.constants)
        self._inputs: dict[tuple[object, ...], fx.Node] = {}
        self._specs: list[InputSpec] = []
        self._subgraphs = 0
        self._numbers = set[fx.Node]()  # that a branch chooses
        for free in (False, True):  # arguments of the call come last
            for exported in paths.values():
                self._add_inputs(exported, free=free)

    def exported(self) -> ExportedProgram:
        outputs = self._write((), [], {})
        note_chosen(self._root, (k for k, x in enumerate(outputs) if x in self._numbers))
        node = self._graph.output(tuple(outputs))
        node.meta = dict(self._first.graph.output_node().meta)
        return with_graph(
            self._first, self._graph, self._specs, root=self._root, constants=self._constants
        )

    def _add_inputs(self, exported: ExportedProgram, *, free: bool) -> None:
        nodes = exported.graph.find_nodes(op="placeholder")
        for node, spec in zip(nodes, exported.graph_signature.input_specs, strict=True):
            key = _key(exported, node, spec)
            if (spec.kind is InputKind.USER_INPUT) != free or key in self._inputs:
                continue
            made = self._graph.placeholder(node.name)
            made.target, made.meta = made.name, dict(node.meta)
            target = spec.target
            if spec.kind is InputKind.CONSTANT_TENSOR:
                target = made.name
                self._constants[target] = exported.constants[str(spec.target)]
            arg = TensorArgument(made.name) if isinstance(spec.arg, TensorArgument) else spec.arg
            self._specs.append(InputSpec(spec.kind, arg, target, spec.persistent))
            self._inputs[key] = made

    def _write(
        self, prefix: Answers, before: list[fx.Node | None], numbers: Mapping[str, fx.Node]
    ) -> list[Any]:
        """Writes the nodes after `prefix` and returns the results. before: the nodes written so far, None for a fork; without those of numbers, which paths
        may write otherwise: `numbers` has them by their expressions."""
        exported = next(e for c, e in self._paths.items() if c[: len(prefix)] == prefix)
        env = {
            node: self._inputs[_key(exported, node, spec)]
            for node, spec in zip(
                exported.graph.find_nodes(op="placeholder"),
                exported.graph_signature.input_specs,
                strict=True,
            )
        }
        shared, written = dict(numbers), list[fx.Node | None]()

        def value(n: fx.Node) -> fx.Node:
            if n not in env:  # of numbers, which this path alone needs
                env[n] = self._graph.node_copy(n, value)
            return env[n]

        for node in (n for n in exported.graph.nodes if n.op != "placeholder"):
            behind = len(written) >= len(before)
            if _is_of_numbers(node):
                text = _text(node)
                if text in shared:
                    env[node] = shared[text]
                elif behind:
                    shared[text] = value(node)
            elif not behind:
                known = before[len(written)]
                _check_same(node, known)
                if known:
                    env[node] = known
                written.append(known)
            elif node.target is fork:
                state = [*written, None], shared
                return self._fork(node, value(node.args[0]), prefix, state)
            elif node.op == "output":
                return [value(x) if isinstance(x, fx.Node) else x for x in node.args[0]]
            else:
                made = env[node] = self._graph.node_copy(node, value)
                if node.op == "get_attr":
                    self._add_subgraph(made, exported)
                written.append(made)
        raise InternalError("the graph has no output")

    def _fork(
        self, mark: fx.Node, test: fx.Node, prefix: Answers, state: tuple[list[fx.Node | None], Mapping[str, fx.Node]]
    ) -> list[Any]:  # fmt: skip
        """The results of both paths after `prefix`. state: what has been written, as `_write` takes it."""
        ways = list[list[Any]]()
        begin = self._mark(branch, mark, test, 0)
        ways.append(self._write((*prefix, True), *state))
        middle = self._mark(branch, mark, test, 1)
        ways.append(self._write((*prefix, False), *state))
        end = self._mark(branch, mark, test, 2)
        structures = [self._structure((*prefix, answer)) for answer in (True, False)]
        if structures[0] != structures[1] or len(ways[0]) != len(ways[1]):
            raise CaptureError(
                "the branches return results of different structure"
                + _at(mark)
                + ": return the same tuples,"
                " lists and dicts in both"
            )
        sizes = UnequalSizes(self._graph, (middle, end), state[0])
        pairs = [sizes.padded(k, *pair) for k, pair in enumerate(zip(*ways, strict=True))]
        choose = partial(self._choose, mark, begin)
        return sizes.selected([choose(*pair) for pair in pairs], choose)

    def _structure(self, prefix: Answers) -> Any:
        exported = next(e for c, e in self._paths.items() if c[: len(prefix)] == prefix)
        return exported.call_spec.out_spec

    def _choose(self, mark: fx.Node, begin: fx.Node, then: Any, otherwise: Any) -> Any:
        """A result of the branches that begin at the marker `begin`."""
        if then is otherwise or (type(then) in _NUMBERS and is_equal(then, otherwise)):
            return then
        number = any(type(x) in _NUMBERS or x in self._numbers for x in (then, otherwise))
        then, otherwise = (self._filled(begin, x) for x in (then, otherwise))
        types = [_describe(x) for x in (then, otherwise)]
        if types[0] != types[1]:
            raise CaptureError(
                f"one branch returns {types[0]}, the other {types[1]}{_at(mark)}: a result that depends on a tensor's value"
                " needs one shape and type. Pad it, or convert it"
            )
        if not isinstance(then, fx.Node):
            return then
        made = self._mark(join, mark, begin.args[0], then, otherwise)
        made.meta["val"] = torch.empty_like(then.meta["val"], memory_format=torch.contiguous_format)
        if number:
            self._numbers.add(made)
        return made

    def _filled(self, begin: fx.Node, x: Any) -> Any:
        """A number as a tensor, made before the branches; anything else as it is."""
        if type(x) not in _NUMBERS:
            return x
        test: Any = begin.args[0]
        value: torch.Tensor = test.meta["val"]
        made = value.new_full([], x, dtype=_NUMBERS[type(x)])
        with self._graph.inserting_before(begin):
            node = self._graph.call_function(
                torch.ops.aten.full.default,
                ([], x),
                {"dtype": made.dtype, "device": made.device},
            )
        node.meta = {**begin.meta, "val": made}
        return node

    def _mark(self, op: Any, mark: fx.Node, *args: Any) -> fx.Node:
        made = self._graph.call_function(op, args)
        made.meta = dict(mark.meta)
        return made

    def _add_subgraph(self, made: fx.Node, exported: ExportedProgram) -> None:
        """Adds the subgraph that `made` reads, under a new name."""
        held: Any = exported.graph_module
        for part in str(made.target).split("."):
            held = getattr(held, part)
        self._subgraphs += 1
        name = f"path_{self._subgraphs}"
        setattr(self._root, name, held)
        made.target = name


_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}
_UNSTEADY = (
    "the model takes another path when it is traced again, before anything depends on a tensor's"
    " value: its forward must not change what it reads (lists, global names)"
)


def _at(node: fx.Node) -> str:
    where = origin(node.stack_trace)
    return f", at {where}" if where else ""


def _describe(x: Any) -> str:
    """The type of a result, for messages."""
    if not isinstance(x, fx.Node):
        return repr(x)
    value = x.meta["val"]
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"


def _key(exported: ExportedProgram, node: fx.Node, spec: InputSpec) -> tuple[object, ...]:
    """A key that is equal for the same input of two paths."""
    if spec.kind is InputKind.USER_INPUT:
        return (spec.kind, node.name)
    target = str(spec.target)
    name = target.rpartition(".")[2]  # without the name of the module
    if spec.kind is not InputKind.CONSTANT_TENSOR or not name.startswith("lifted_tensor"):
        return (spec.kind, target)
    held = exported.constants[target]  # a literal, which every trace creates again
    assert isinstance(held, torch.Tensor)
    plain = held.detach().cpu().resolve_conj().resolve_neg()
    value = bytes(plain.reshape(-1).view(torch.uint8).numpy())
    return (spec.kind, value, held.dtype, held.shape, held.device)
