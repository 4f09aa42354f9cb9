"""The courses that a model may take, as one graph.

Each is an exported graph with a `fork` mark wherever Python asked for a tensor's truth value. Two courses with the same answers so far are
equal up to the next fork; what follows in both is put between marks there (`marks.py`).
"""

import copy
from collections.abc import Mapping
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

from monotile.errors import CaptureError, InternalError
from monotile.frontends.torch.branches.marks import choose, fork, side
from monotile.frontends.torch.origin import origin
from monotile.frontends.torch.rewriting.lifted import with_graph

Course = tuple[bool, ...]  # what was answered at each fork


def merge(courses: Mapping[Course, ExportedProgram]) -> ExportedProgram:
    """One graph without forks. Raises CaptureError where the courses' results differ in number or type."""
    if len(courses) == 1:
        (exported,) = courses.values()
        return exported
    first, *others = courses.values()
    for exported in others:
        _adopt(exported, detect_fake_mode(_values(first.graph)))
    return _Merged(courses).exported()


def _values(graph: fx.Graph) -> list[Any]:
    return [n.meta.get("val") for n in graph.nodes]


def _adopt(exported: ExportedProgram, mode: Any) -> None:
    """Gives the values of the graph's nodes, which every trace has in a mode of its own, another one."""

    def adopted(x: FakeTensor) -> torch.Tensor:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)

    graphs = [m.graph for m in exported.graph_module.modules() if isinstance(m, fx.GraphModule)]
    with mode:
        for node in (n for graph in graphs for n in graph.nodes):
            if "val" in node.meta:
                node.meta["val"] = pytree.tree_map_only(FakeTensor, adopted, node.meta["val"])


class _Merged:
    """The merged graph, as it is written."""

    def __init__(self, courses: Mapping[Course, ExportedProgram]) -> None:
        self._courses = courses
        self._first = next(iter(courses.values()))
        self._graph = fx.Graph()
        self._root = copy.copy(self._first.graph_module)  # with the subgraphs of all courses
        self._constants = dict(self._first.constants)
        self._inputs: dict[tuple[object, ...], fx.Node] = {}
        self._specs: list[InputSpec] = []
        self._subgraphs = 0
        for free in (False, True):  # what the caller gives comes last
            for exported in courses.values():
                self._add_inputs(exported, free=free)

    def exported(self) -> ExportedProgram:
        outputs = self._write((), [])
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

    def _write(self, course: Course, before: list[fx.Node | None]) -> list[Any]:
        """What follows `course`, up to the results, which it gives. before: what was written of the nodes until there, None for a fork."""
        exported = next(e for c, e in self._courses.items() if c[: len(course)] == course)
        env = {
            node: self._inputs[_key(exported, node, spec)]
            for node, spec in zip(
                exported.graph.find_nodes(op="placeholder"),
                exported.graph_signature.input_specs,
                strict=True,
            )
        }
        nodes = [n for n in exported.graph.nodes if n.op != "placeholder"]
        for node, known in zip(nodes, before, strict=False):
            same = (
                node.target is fork
                if known is None
                else (
                    node.op == known.op and (node.op == "get_attr" or node.target is known.target)
                )
            )
            if not same:
                raise CaptureError(_UNSTEADY + _at(node))
            if known:
                env[node] = known
        written = list(before)
        for node in nodes[len(before) :]:
            if node.target is fork:
                test = env[node.args[0]]
                return self._fork(node, test, course, [*written, None])
            if node.op == "output":
                return [env[x] if isinstance(x, fx.Node) else x for x in node.args[0]]
            made = self._graph.node_copy(node, env.__getitem__)
            if node.op == "get_attr":
                self._hold(made, exported)
            env[node] = made
            written.append(made)
        raise InternalError("the graph has no output")

    def _fork(
        self, mark: fx.Node, test: fx.Node, course: Course, written: list[fx.Node | None]
    ) -> list[Any]:
        ways = list[list[Any]]()
        for part, answer in enumerate((True, False)):
            self._mark(side, mark, test, part)
            ways.append(self._write((*course, answer), written))
        self._mark(side, mark, test, 2)
        forms = [self._form((*course, answer)) for answer in (True, False)]
        if forms[0] != forms[1] or len(ways[0]) != len(ways[1]):
            raise CaptureError(
                "the sides give results of different structure"
                + _at(mark)
                + ": give the same tuples,"
                " lists and dicts on both"
            )
        return [self._choose(mark, test, x, y) for x, y in zip(*ways, strict=True)]

    def _form(self, course: Course) -> Any:
        exported = next(e for c, e in self._courses.items() if c[: len(course)] == course)
        return exported.call_spec.out_spec

    def _choose(self, mark: fx.Node, test: fx.Node, then: Any, otherwise: Any) -> Any:
        if then is otherwise:
            return then
        kinds = [_kind(x) for x in (then, otherwise)]
        if kinds[0] != kinds[1]:
            raise CaptureError(
                f"one side gives {kinds[0]}, the other {kinds[1]}{_at(mark)}: what depends on a tensor's value"
                " has one shape and type. Pad it, or convert it"
            )
        if not isinstance(then, fx.Node):
            return then
        made = self._mark(choose, mark, test, then, otherwise)
        made.meta["val"] = torch.empty_like(then.meta["val"], memory_format=torch.contiguous_format)
        return made

    def _mark(self, op: Any, mark: fx.Node, *args: Any) -> fx.Node:
        made = self._graph.call_function(op, args)
        made.meta = dict(mark.meta)
        return made

    def _hold(self, made: fx.Node, exported: ExportedProgram) -> None:
        """The subgraph that `made` reads, under a name of its own."""
        held: Any = exported.graph_module
        for part in str(made.target).split("."):
            held = getattr(held, part)
        self._subgraphs += 1
        name = f"course_{self._subgraphs}"
        setattr(self._root, name, held)
        made.target = name


_UNSTEADY = (
    "the model takes another course when it is traced again, before anything depends on a tensor's"
    " value: its forward must not change what it reads (lists, global names)"
)


def _at(node: fx.Node) -> str:
    where = origin(node.stack_trace)
    return f", at {where}" if where else ""


def _kind(x: Any) -> str:
    """The type of a result, in words."""
    if not isinstance(x, fx.Node):
        return repr(x)
    value = x.meta["val"]
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"


def _key(exported: ExportedProgram, node: fx.Node, spec: InputSpec) -> tuple[object, ...]:
    """Equal for inputs of two courses that are the same."""
    if spec.kind is InputKind.USER_INPUT:
        return (spec.kind, node.name)
    target = str(spec.target)
    name = target.rpartition(".")[2]  # behind the module's that made it
    if spec.kind is not InputKind.CONSTANT_TENSOR or not name.startswith("lifted_tensor"):
        return (spec.kind, target)
    held = exported.constants[target]  # a literal, which every trace makes anew
    assert isinstance(held, torch.Tensor)
    value = bytes(held.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return (spec.kind, value, held.dtype, held.shape, held.device)
