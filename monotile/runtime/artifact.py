"""The result of a compilation without the model's parameters; what the disk cache and saved files store."""

from typing import Any

import msgspec
import numpy as np
import torch.utils._pytree as pytree

from monotile.analysis.pruning.specialised import Specialised
from monotile.analysis.work import Work
from monotile.ir.dtype import DType
from monotile.ir.expr import Tensor
from monotile.ir.signature import (
    AliasLeaf,
    InputLeaf,
    OutputLeaf,
    Parameter,
    ResultLeaf,
    Signature,
    SizeLeaf,
    Sizes,
    TensorLeaf,
    ValueLeaf,
)
from monotile.kernels.registry import METHODS
from monotile.plan.nodes import Plan, decoder
from monotile.targets.binary import Binary
from monotile.targets.target import Target

Array = np.ndarray[Any, np.dtype[Any]]


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """outputs: of the Program, in order.
    source, entry, checks: generated text, the symbol to run, and the message of each run-time index check.
    constants: the values of those `plan.weights` that the caller does not hold.
    states: the inputs and parameters that a call updates in place.
    watched: the inputs that the host may use during a call.
    tied: other names of parameters, with the name that `plan.weights` has for each.
    orders: of inputs and parameters that the kernel does not read row-major: dimension k in memory is dimension `order[k]`
        of the tensor.
    profiled: the kernel takes a pointer to memory for records (`plan/records.py`) after those of the weights.
    work: the minimum bytes and operations of a call.
    specialised: what was removed because of the parameters' zeros."""

    target: Target
    plan: Plan
    outputs: tuple[Tensor, ...]
    source: str
    entry: str
    checks: tuple[str, ...]
    binary: Binary
    signature: Signature
    constants: dict[str, Array]
    work: Work
    states: tuple[str, ...] = ()
    watched: tuple[str, ...] = ()
    tied: dict[str, str] = {}
    orders: dict[str, tuple[int, ...]] = {}
    profiled: bool = False
    specialised: Specialised = Specialised()

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the tensors that the caller holds."""
        return tuple(dict.fromkeys(n for n in self.plan.weights if n not in self.constants))

    @property
    def named(self) -> tuple[str, ...]:
        """These, and those whose values the kernel relies on."""
        return tuple(
            dict.fromkeys((*self.parameters, *self.specialised.relied, *self.specialised.ascending))
        )


def encode(artifact: Artifact) -> bytes | None:
    """The artifact as bytes; None if the signature contains values or containers without an exact textual form."""
    signature = _encode_signature(artifact.signature)
    if signature is None:
        return None
    flat = _Stored(
        target=artifact.target,
        plan=artifact.plan,
        outputs=artifact.outputs,
        source=artifact.source,
        entry=artifact.entry,
        checks=artifact.checks,
        binary=artifact.binary,
        signature=signature,
        constants={
            name: _StoredArray(DType.from_numpy(a.dtype), a.shape, a.tobytes())
            for name, a in artifact.constants.items()
        },
        states=artifact.states,
        watched=artifact.watched,
        tied=artifact.tied,
        orders=artifact.orders,
        profiled=artifact.profiled,
        work=artifact.work,
        specialised=artifact.specialised,
    )
    return msgspec.msgpack.encode(flat)


def decode(content: bytes) -> Artifact | None:
    """The Artifact that `encode` wrote; None for one of another version of Monotile."""
    try:
        flat = msgspec.msgpack.decode(content, type=_Stored, dec_hook=decoder(METHODS))
        signature = _decode_signature(flat.signature)
    except (msgspec.DecodeError, ValueError, NotImplementedError, KeyError):
        return None
    return Artifact(
        target=flat.target,
        plan=flat.plan,
        outputs=flat.outputs,
        source=flat.source,
        entry=flat.entry,
        checks=flat.checks,
        binary=flat.binary,
        signature=signature,
        constants={
            name: np.frombuffer(a.data, dtype=a.dtype.numpy).reshape(a.shape)
            for name, a in flat.constants.items()
        },
        states=flat.states,
        watched=flat.watched,
        tied=flat.tied,
        orders=flat.orders,
        profiled=flat.profiled,
        work=flat.work,
        specialised=flat.specialised,
    )


# The stored form. A leaf has one of four tags; a compiled-in value is a scalar whose type msgpack preserves.

Scalar = None | bool | int | float | str


class _TensorLeaf(msgspec.Struct, frozen=True, tag="tensor"):
    tensor: Tensor
    shape: tuple[str, ...]


class _SizeLeaf(msgspec.Struct, frozen=True, tag="size"):
    value: str


class _ValueLeaf(msgspec.Struct, frozen=True, tag="value"):
    value: Scalar


class _OutputLeaf(msgspec.Struct, frozen=True, tag="output"):
    index: int
    row: tuple[int, ...]
    shape: tuple[str, ...]
    number: bool


class _AliasLeaf(msgspec.Struct, frozen=True, tag="alias"):
    leaf: int


class _Signature(msgspec.Struct, frozen=True):
    inputs: tuple[_TensorLeaf | _ValueLeaf | _SizeLeaf, ...]
    names: tuple[str, ...]
    input_tree: str
    outputs: tuple[_OutputLeaf | _AliasLeaf | _ValueLeaf | _SizeLeaf, ...]
    output_tree: str
    sizes: Sizes
    parameters: tuple[Parameter, ...]


class _StoredArray(msgspec.Struct, frozen=True):
    dtype: DType
    shape: tuple[int, ...]
    data: bytes


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    target: Target
    plan: Plan
    outputs: tuple[Tensor, ...]
    source: str
    entry: str
    checks: tuple[str, ...]
    binary: Binary
    signature: _Signature
    constants: dict[str, _StoredArray]
    states: tuple[str, ...]
    watched: tuple[str, ...]
    tied: dict[str, str]
    orders: dict[str, tuple[int, ...]]
    profiled: bool
    work: Work
    specialised: Specialised


def _encode_signature(signature: Signature) -> _Signature | None:
    inputs: list[_TensorLeaf | _ValueLeaf | _SizeLeaf] = []
    for leaf in signature.inputs:
        match leaf:
            case TensorLeaf(tensor, shape):
                inputs.append(_TensorLeaf(tensor, shape))
            case SizeLeaf(text):
                inputs.append(_SizeLeaf(text))
            case ValueLeaf(value) if _is_scalar(value):
                inputs.append(_ValueLeaf(value))
            case ValueLeaf():
                return None
    outputs: list[_OutputLeaf | _AliasLeaf | _ValueLeaf | _SizeLeaf] = []
    for leaf in signature.outputs:
        match leaf:
            case OutputLeaf(index, row, shape, number):
                outputs.append(_OutputLeaf(index, row, shape, number))
            case SizeLeaf(text):
                outputs.append(_SizeLeaf(text))
            case AliasLeaf(position):
                outputs.append(_AliasLeaf(position))
            case ValueLeaf(value) if _is_scalar(value):
                outputs.append(_ValueLeaf(value))
            case ValueLeaf():
                return None
    try:
        trees = [pytree.treespec_dumps(t) for t in (signature.input_tree, signature.output_tree)]
        same = [pytree.treespec_loads(t) for t in trees]
    except (NotImplementedError, TypeError, ValueError, KeyError):
        return None  # a container registered without a name
    if same != [signature.input_tree, signature.output_tree]:
        return None
    return _Signature(
        tuple(inputs), signature.names, trees[0], tuple(outputs), trees[1], signature.sizes, signature.parameters
    )  # fmt: skip


def _decode_signature(stored: _Signature) -> Signature:
    inputs: list[InputLeaf] = []
    for leaf in stored.inputs:
        match leaf:
            case _TensorLeaf(tensor, shape):
                inputs.append(TensorLeaf(tensor, shape))
            case _SizeLeaf(text):
                inputs.append(SizeLeaf(text))
            case _ValueLeaf(value):
                inputs.append(ValueLeaf(value))
    outputs: list[ResultLeaf] = []
    for leaf in stored.outputs:
        match leaf:
            case _OutputLeaf(index, row, shape, number):
                outputs.append(OutputLeaf(index, row, shape, number))
            case _SizeLeaf(text):
                outputs.append(SizeLeaf(text))
            case _AliasLeaf(position):
                outputs.append(AliasLeaf(position))
            case _ValueLeaf(value):
                outputs.append(ValueLeaf(value))
    return Signature(
        tuple(inputs),
        stored.names,
        pytree.treespec_loads(stored.input_tree),
        tuple(outputs),
        pytree.treespec_loads(stored.output_tree),
        stored.sizes,
        stored.parameters,
    )


def _is_scalar(value: object) -> bool:
    """None, bool, 64-bit int, float or str, but no subclass such as an enum."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return value is None or type(value) in (bool, float, str)
