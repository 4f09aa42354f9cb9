"""From a PyTorch module to a Program: `torch.export`, then one lowering per operator."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from monotile.errors import CaptureError, InternalError
from monotile.frontends.builder import Builder, load
from monotile.frontends.torch.callables import Model, noted_parameters
from monotile.frontends.torch.complex.pair import Pair, constant_pair, interleaved
from monotile.frontends.torch.export import export
from monotile.frontends.torch.graph import Values, lower_graph, survey
from monotile.frontends.torch.numbers.returned_numbers import returned_numbers
from monotile.frontends.torch.refusals import refuse_devices, refused_object
from monotile.frontends.torch.rewriting.decompose import decompose, quiet
from monotile.frontends.torch.rewriting.lifted import memory_of
from monotile.frontends.torch.sizes.bind import bind
from monotile.frontends.torch.sizes.ranges import Ranges, ranges_of
from monotile.frontends.torch.sizes.size import STATIC, Shapes, Size, text_of
from monotile.frontends.torch.tf32 import STRICT, Tf32
from monotile.frontends.torch.training import is_in_eval, refuse_training
from monotile.frontends.torch.types import to_numpy, type_of
from monotile.ir.expr import Tensor
from monotile.ir.program import Program, Statement, Weight, defined, used
from monotile.ir.signature import (
    RANDOM_STATE,
    AliasLeaf,
    InputLeaf,
    OutputLeaf,
    ResultLeaf,
    Signature,
    SizeLeaf,
    Sizes,
    TensorLeaf,
    ValueLeaf,
)
from monotile.wrapped import real_of


@dataclass(frozen=True, slots=True)
class Captured:
    """A model as tensor expressions.

    parameters: the model's own tensors, never copied, by the names in `Weight.parts`: parameters,
                persistent buffers and buffers that a call updates.
    constants:  constants of the graph, which may be folded: literals and non-persistent buffers.
    tied:       other names of parameters, with the name used here.
    """

    program: Program
    parameters: dict[str, torch.Tensor]
    constants: dict[str, np.ndarray[Any, Any]]
    signature: Signature
    tied: dict[str, str] = field(default_factory=dict[str, str])


def capture(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Captured:
    """`model`, called with the example `args` and `kwargs`, as a Program.

    An ExportedProgram contains its own example arguments; `args` and `kwargs` are then ignored.
    dynamic_shapes: as `torch.export` takes it.
    Raises UnsupportedOperatorError with every operator that has no lowering, CaptureError if the
    model is in training mode, or a shape depends on data.
    """
    exported = export(model, args, kwargs, dynamic_shapes=dynamic_shapes)
    return to_program(exported, functional(exported))


def functional(exported: ExportedProgram) -> ExportedProgram:
    """`exported` in functional ATen, without dead code. Raises CaptureError for a model in training mode."""
    refuse_devices(exported)
    refuse_training(exported.graph_module)
    plain = decompose(exported)
    plain.graph.eliminate_dead_code()
    return plain


def to_program(
    exported: ExportedProgram,
    plain: ExportedProgram,
    most: Mapping[str, int] = MappingProxyType({}),
    tf32: Tf32 = STRICT,
) -> Captured:
    """plain: `exported` in functional ATen. most: smaller upper bounds of symbols. tf32: which float32 products may use TF32. Raises as `capture` does."""
    return _lower(plain, ranges_of(exported).limited(most), tf32)


def obstacles(exported: ExportedProgram) -> tuple[ExportedProgram, dict[str, str]]:
    """`exported` in functional ATen, and its nodes without a lowering, by name, with the reason."""
    plain = decompose(exported)
    b = Builder()
    in_eval = is_in_eval(exported.graph_module)
    found = survey(plain.graph, _Inputs(plain, b).values, b, in_eval=in_eval)
    return plain, {node.name: text for node, text in found.items()}


_CHANGES = frozenset(
    {
        OutputKind.BUFFER_MUTATION,
        OutputKind.PARAMETER_MUTATION,
        OutputKind.USER_INPUT_MUTATION,
    }
)


def _changed(exported: ExportedProgram) -> frozenset[str]:
    """The tensors that a call updates in place: buffers and parameters by name, inputs by their placeholder's name."""
    specs = exported.graph_signature.output_specs
    return frozenset(s.target for s in specs if s.kind in _CHANGES and s.target is not None)


class _Inputs:
    """The placeholders of an exported graph as tensors of the Program."""

    def __init__(self, exported: ExportedProgram, b: Builder, shapes: Shapes = STATIC) -> None:
        self.values: Values = {}
        self._shapes = shapes
        self.changed = _changed(exported)
        self.parameters: dict[str, torch.Tensor] = {}
        self.leaves: list[InputLeaf] = []
        self.leaf_of: dict[str, int] = {}
        self._b = b
        self._shared: dict[object, Tensor] = {}
        for name in self.changed:
            b.names.unique(name)  # the name of a state is unique
        nodes = exported.graph.find_nodes(op="placeholder")
        specs = exported.graph_signature.input_specs
        for node, spec in zip(nodes, specs, strict=True):
            self._add(exported, node, spec)

    def _add(self, exported: ExportedProgram, node: fx.Node, spec: InputSpec) -> None:
        match spec.kind:
            case InputKind.USER_INPUT:
                self._user(node, spec)
            case InputKind.PARAMETER | InputKind.BUFFER | InputKind.CONSTANT_TENSOR:
                name = spec.target or node.name
                held = exported.state_dict.get(name, exported.constants.get(name))
                if not node.users and getattr(held, "is_sparse", False):
                    self.values[node] = None  # as in Whisper: it has no memory to name it by
                elif name in exported.state_dict:
                    self.values[node] = self._held(node, exported.state_dict[name], name)
                else:
                    if not isinstance(held, torch.Tensor):
                        raise CaptureError(f"constant {name} is a {type(held).__name__}")
                    if held.is_complex() and name not in self.changed:
                        self._b.begin(node.name, "", ())
                        self.values[node] = constant_pair(self._b, held)
                        return
                    if spec.kind is InputKind.CONSTANT_TENSOR:
                        name = f"const.{len(self._b.constants)}"
                    constant = name not in self.changed
                    self.values[node] = self._weight(node, held, name, constant=constant)
            case _:
                raise refused_object(exported, node, spec)

    def _user(self, node: fx.Node, spec: InputSpec) -> None:
        value = node.meta.get("val")
        self.leaf_of[node.name] = len(self.leaves)
        if isinstance(value, torch.Tensor):
            if value.is_complex():
                raise CaptureError(
                    f"argument {node.name} is complex: pass torch.view_as_real(...) of it, of which the model"
                    " takes torch.view_as_complex"
                )
            tensor = Tensor(self._b.names.unique(node.name), *type_of(value, self._shapes))
            self.values[node] = tensor
            self.leaves.append(TensorLeaf(tensor, _texts(tensor.shape)))
        elif isinstance(value, torch.SymInt):
            size = self._shapes.size(value)
            self.values[node] = size
            self.leaves.append(SizeLeaf(text_of(size)))
        else:
            fixed = spec.arg.value if isinstance(spec.arg, ConstantArgument) else value
            self.values[node] = fixed
            self.leaves.append(ValueLeaf(fixed))

    def state(self, spec: OutputSpec) -> str:
        """The Program's name of the state whose new value is the output `spec`."""
        name = str(spec.target)
        if spec.kind is not OutputKind.USER_INPUT_MUTATION:
            return name
        leaf = self.leaves[self.leaf_of[name]]
        assert isinstance(leaf, TensorLeaf)
        return leaf.tensor.name

    def _held(self, node: fx.Node, held: torch.Tensor, name: str) -> Tensor | Pair:
        """A parameter or a persistent buffer; a complex one as pairs of its parts, as in memory."""
        if not held.is_complex():
            return self._weight(node, held, name, constant=False)
        if name in self.changed:
            raise CaptureError(
                f"the model updates {name}, which is complex: hold torch.view_as_real of it"
            )
        whole = self._weight(node, real_of(held), name, constant=False)
        self._b.begin(node.name, "", ())
        return interleaved(self._b, whole)

    def _weight(self, node: fx.Node, held: torch.Tensor, name: str, *, constant: bool) -> Tensor:
        key = memory_of(held)  # tied parameters are one Weight
        if key not in self._shared:
            tensor = Tensor(self._b.names.unique(node.name), *type_of(held, STATIC))
            self._shared[key] = tensor
            self._b.weights.append(Weight(tensor, (name,)))
            if constant:
                self._b.constants[name] = to_numpy(held)
            else:
                self.parameters[name] = held
        return self._shared[key]


def _tied(exported: ExportedProgram, parameters: Mapping[str, torch.Tensor]) -> dict[str, str]:
    names = {memory_of(x): name for name, x in parameters.items()}
    found = ((name, names.get(memory_of(real_of(x)))) for name, x in exported.state_dict.items())
    return {name: known for name, known in found if known not in (None, name)}


class _Results(NamedTuple):
    """outputs: of the Program, without states; the last ones are guards. leaves: the model's results, in terms of outputs. counts: the outputs with
    data-dependent sizes, by symbol."""

    outputs: list[Tensor]
    states: dict[str, Tensor]
    leaves: list[ResultLeaf]
    counts: dict[str, int]


def _results(exported: ExportedProgram, found: Sequence[Any], inputs: _Inputs, b: Builder) -> _Results:  # fmt: skip
    """The results of a graph whose results have the values `found`."""
    given = {t.tensor for t in inputs.leaves if isinstance(t, TensorLeaf)}
    given |= {w.tensor for w in b.weights}
    outputs: list[Tensor] = []
    states: dict[str, Tensor] = {}
    leaves: list[ResultLeaf] = []
    places: dict[str, int] = {}
    counted: set[str] = set()
    specs = exported.graph_signature.output_specs
    numbers = iter(
        returned_numbers(exported.graph_module, sum(s.kind not in _CHANGES for s in specs))
    )
    for value, spec in zip(found, specs, strict=True):
        if spec.kind in _CHANGES:
            states[inputs.state(spec)] = _copy(b, value) if value in given else value
            continue
        number = next(numbers)
        name = spec.arg.name if isinstance(spec.arg, TensorArgument) else ""
        if name in inputs.leaf_of and name not in inputs.changed and isinstance(value, Tensor):
            leaves.append(AliasLeaf(inputs.leaf_of[name]))
            continue
        if isinstance(value, Pair):
            raise CaptureError(f"result {name} is complex: return torch.view_as_real(...) of it")
        counted |= _unknown_of(value, b.sizes)
        if not isinstance(value, Tensor):
            leaves.append(SizeLeaf(text_of(value)) if isinstance(value, Size) else ValueLeaf(value))
            continue
        if (
            name not in places
        ):  # a result that the graph identifies with another tensor, such as a clone, is copied
            places[name] = len(outputs)
            outputs.append(_copy(b, value) if value in given or value in outputs else value)
        leaves.append(OutputLeaf(places[name], shape=_texts(value.shape), number=number))
    counts = {name: len(outputs) + k for k, name in enumerate(sorted(counted))}
    outputs += [b.sizes[name] for name in counts]
    outputs += b.granted or ()
    return _Results(outputs, states, leaves, counts)


def _lower(exported: ExportedProgram, ranges: Ranges, tf32: Tf32) -> Captured:
    b, shapes = Builder(), Shapes(ranges)
    inputs = _Inputs(exported, b, shapes)
    found = lower_graph(exported.graph, inputs.values, b, shapes, tf32)
    results, states, leaves, counts = _results(exported, found, inputs, b)
    if b.draws.used:
        states[RANDOM_STATE] = _next_state(b, inputs)
    outputs = [*results, *states.values()]
    body = _live(b.statements, [*outputs, *b.sizes.values()])
    read = {t for s in body for t in used(s)}
    weights = tuple(w for w in b.weights if w.tensor in read or w.parts[0] in states)
    parts = {p for w in weights for p in w.parts}
    program = Program(
        tuple(t.tensor for t in inputs.leaves if isinstance(t, TensorLeaf)),
        weights,
        tuple(body),
        tuple(outputs),
        tuple(states),
    )
    parameters = {k: v for k, v in inputs.parameters.items() if k in parts}
    bound = bind(program, b.names, ranges, b.sizes)
    now = {t.name: t for t in bound.program.inputs}
    given = [
        TensorLeaf(now[x.tensor.name], x.shape) if isinstance(x, TensorLeaf) else x
        for x in inputs.leaves
    ]
    counted = tuple((name, OutputLeaf(k)) for name, k in counts.items())
    sizes = Sizes(ranges.of, tuple(bound.scalars.items()), counted, ranges.conditions, ranges.fixed)
    return Captured(
        bound.program,
        parameters,
        {k: v for k, v in b.constants.items() if k in parts},
        replace(_signature(exported, given, leaves), sizes=sizes),
        _tied(exported, parameters),
    )


def _next_state(b: Builder, inputs: _Inputs) -> Tensor:
    """The next state of the random numbers. The state is a weight, like a buffer that a call updates; each compiled module has its own."""
    b.weights.append(b.draws.weight)
    inputs.parameters[RANDOM_STATE] = torch.zeros(2, dtype=torch.int64)
    made = b.draws.next_state()
    b.append(made)
    return made.out


def _unknown_of(value: Any, sizes: Collection[str]) -> set[str]:
    """The data-dependent symbols among `sizes` that occur in a result's shape, or in a number."""
    shape = value.shape if isinstance(value, Tensor) else (value,)
    named = {str(x) for n in shape if isinstance(n, Size) for x in n.expr.free_symbols}
    return named.intersection(sizes)


def _texts(shape: Sequence[int]) -> tuple[str, ...]:
    """The dimensions as expressions, if one is dynamic."""
    return tuple(map(text_of, shape)) if any(isinstance(n, Size) for n in shape) else ()


def _copy(b: Builder, t: Tensor) -> Tensor:
    """Copies an output that is an input, a weight or another output."""
    b.begin(f"{t.name}_out", "", ())
    return b.emit(t.shape, t.dtype, lambda *i: load(t, i))


def _live(body: Sequence[Statement], outputs: Iterable[Tensor]) -> list[Statement]:
    """The statements on which `outputs` depend, in order."""
    needed = set(outputs)
    kept: list[Statement] = []
    for s in reversed(body):
        if not needed.isdisjoint(defined(s)):
            needed.update(used(s))
            kept.append(s)
    return kept[::-1]


def _signature(
    exported: ExportedProgram,
    inputs: Sequence[InputLeaf],
    outputs: Sequence[ResultLeaf],
) -> Signature:
    spec = exported.call_spec
    if spec.in_spec is None or spec.out_spec is None:
        raise InternalError("the exported program has no call spec")
    args, kwargs = pytree.tree_unflatten(list(range(len(inputs))), spec.in_spec)
    with quiet():
        named = [
            *pytree.tree_flatten_with_path({"args": tuple(args)})[0],
            *pytree.tree_flatten_with_path(dict(kwargs))[0],
        ]
    names = {leaf: _leaf_name(path) for path, leaf in named}
    return Signature(
        tuple(inputs),
        tuple(names[k] for k in range(len(inputs))),
        spec.in_spec,
        tuple(outputs),
        spec.out_spec,
        parameters=noted_parameters(exported.graph_module),
    )


def _leaf_name(path: Sequence[Any]) -> str:
    """ "args[0]", or the name of an argument that was passed by keyword."""
    first, *rest = path
    return str(first.key) + "".join(str(key) for key in rest)
