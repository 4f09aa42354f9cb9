"""Converts a call's arguments to tensors, and a kernel's outputs to the model's results, by the Signature."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
import torch.utils._pytree as pytree

from monotile.errors import InputError
from monotile.ir.expr import Tensor
from monotile.ir.signature import (
    AliasLeaf,
    OutputLeaf,
    Signature,
    SizeLeaf,
    TensorLeaf,
    ValueLeaf,
)
from monotile.runtime.binding import Call, bound
from monotile.runtime.pytrees import constructor, describe_call, is_leaf
from monotile.runtime.sizes import Shape
from monotile.runtime.tensors import ALIGNMENT, fast_empty_strided, kernel_readable, torch_dtype
from monotile.wrapped import real_of

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


class Arguments:
    """Checks and flattens arguments; everything that is known before a call is precomputed.

    signature: of the model. wanted: the names of the Program's inputs, in the launch's order. orders: memory orders of the inputs that the
    kernel does not read row-major. watched: the inputs that may be in host memory, which the host may access during the call.
    """

    def __init__(
        self,
        signature: Signature,
        wanted: Sequence[str],
        device: torch.device,
        orders: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
        watched: Sequence[str] = (),
    ) -> None:
        self._signature = signature
        self._device = device
        self._values = [
            (i, leaf.value)
            for i, leaf in enumerate(signature.inputs)
            if isinstance(leaf, ValueLeaf)
        ]
        place = {
            leaf.tensor.name: (
                i,
                torch_dtype(leaf.tensor.dtype),
                None if leaf.shape else torch.Size(leaf.tensor.shape),
                orders.get(leaf.tensor.name),
            )
            for i, leaf in enumerate(signature.inputs)
            if isinstance(leaf, TensorLeaf)
        }
        sizes = {name for name, _ in signature.sizes.scalars}
        read = [place.pop(name) for name in wanted if name not in sizes]
        self._tensors = [*read, *place.values()]  # unused arguments are checked too
        self._read = len(read)
        self._watched = frozenset(
            i
            for i, leaf in enumerate(signature.inputs)
            if isinstance(leaf, TensorLeaf) and leaf.tensor.name in watched
        )
        self._flat = _is_flat(signature)

    def leaves(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Sequence[object]:
        """The leaves of a call's arguments. Raises InputError if their structure differs."""
        if self._flat and not kwargs and len(args) == len(self._signature.inputs):
            return args
        call = (args, dict(kwargs))
        found = self._flattened(call)
        if found is None and (other := bound(self._signature, *call)) is not None:
            found = self._flattened(other)
        if found is None:
            expected, got = self._signature.input_tree, pytree.tree_structure(call)
            raise InputError(
                f"the structure of the arguments differs from the compiled one: expected"
                f" {describe_call(expected)}, got {describe_call(got)}. Pass the same structure, or compile again"
            )
        return found

    def _flattened(self, call: Call) -> Sequence[object] | None:
        """The leaves of a call with the compiled structure; None for another structure."""
        expected = self._signature.input_tree
        leaves, tree = pytree.tree_flatten(call)
        if tree == expected:
            return leaves
        try:
            found = expected.flatten_up_to(call)  # the order of a dict's keys is irrelevant
        except ValueError:
            return None
        return found if len(found) == len(leaves) else None

    def tensors(self, leaves: Sequence[object]) -> list[torch.Tensor]:
        """The tensors of the launch, in its order, each readable through its pointer.

        Raises InputError for the first argument that does not fit.
        """
        for position, value in self._values:
            given = leaves[position]
            if given is not value and (type(given) is not type(value) or given != value):
                raise self._mismatch(position, given)
        device = self._device
        found: list[torch.Tensor] = []
        for position, dtype, shape, order in self._tensors:
            given = leaves[position]
            x = given
            if isinstance(given, torch.Tensor) and given.dtype is not dtype:
                x = real_of(given)
            if (
                type(x) not in _PLAIN
                or not isinstance(x, torch.Tensor)  # already implied; for the type checker
                or x.dtype is not dtype
                or (shape is not None and x.shape != shape)
                or (x.device != device and not (position in self._watched and x.is_pinned()))
                or x.layout is not torch.strided
                or (x.requires_grad and torch.is_grad_enabled())
            ):
                raise self._mismatch(position, given)
            if order is not None:
                x = x.permute(order)
            if not x.is_contiguous() or x.is_neg() or x.data_ptr() % ALIGNMENT:
                if position in self._watched:
                    raise self._unwatchable(position)
                x = kernel_readable(x)
            found.append(x)
        del found[self._read :]
        return found

    def originals(self, leaves: Sequence[object]) -> list[tuple[str, torch.Tensor]]:
        """The caller's tensors with their names, in the launch's order."""
        found = ((self._signature.names[k], leaves[k]) for k, *_ in self._tensors[: self._read])
        return [(name, x) for name, x in found if isinstance(x, torch.Tensor)]

    def _unwatchable(self, position: int) -> InputError:
        return InputError(
            f"{self._signature.names[position]} is used during the call, so the kernel cannot take a copy: it has to be"
            f" contiguous, and its address a multiple of {ALIGNMENT} bytes"
        )

    def _mismatch(self, position: int, given: object) -> InputError:
        leaf, name = self._signature.inputs[position], self._signature.names[position]
        assert not isinstance(leaf, SizeLeaf)
        if isinstance(leaf, ValueLeaf):
            return InputError(
                f"{name} was {leaf.value!r} when the model was compiled, and its value is compiled in; got {given!r}."
                " Compile again for another value"
            )
        expected = f"{name}: expected {_type_words(leaf)} on {self._device}"
        if not isinstance(given, torch.Tensor):
            hint = "give a torch.Tensor"
            return InputError(f"{expected}, got {type(given).__name__}: {hint}")
        if type(given) not in _PLAIN:
            return InputError(
                f"{expected}, got a {type(given).__name__}: pass a plain torch.Tensor"
            )
        got = f"{list(given.shape)} {_dtype_words(given.dtype)} on {given.device}"
        if given.is_complex():
            got += f", whose real numbers are {list(real_of(given).shape)} {_dtype_words(given.real.dtype)}"
            given = real_of(given)
        if given.layout is not torch.strided:
            return InputError(f"{expected}, got a tensor of layout {given.layout}: use .to_dense()")
        if not leaf.shape and tuple(given.shape) != leaf.tensor.shape:
            hint = "shapes are compiled in: pad or split the input, or compile again for this shape"
        elif given.dtype is not torch_dtype(leaf.tensor.dtype):
            hint = f"convert it with .to(torch.{leaf.tensor.dtype.value}), or compile again"
        elif given.device != self._device:
            hint = f'move it with .to("{self._device}")'
            if position in self._watched:
                hint += ", or to see it during the call to page-locked memory with .pin_memory()"
        else:
            return InputError(
                f"{name} requires a gradient, and Monotile computes none: call under torch.no_grad(),"
                f" or pass {name}.detach()"
            )
        return InputError(f"{expected}, got {got}: {hint}")


class Results:
    """Allocates the outputs and assembles the model's results from them."""

    def __init__(
        self, signature: Signature, outputs: Sequence[Tensor], device: torch.device
    ) -> None:
        self._device = device
        self._types = [(t.shape, t.strides, torch_dtype(t.dtype)) for t in outputs]
        self._empty = fast_empty_strided(device)
        self._leaves = signature.outputs
        self._plain = all(leaf == OutputLeaf(i) for i, leaf in enumerate(signature.outputs))
        self._assemble = constructor(signature.output_tree)

    def empty(self) -> list[torch.Tensor]:
        """Newly allocated outputs, in the Program's order."""
        empty = self._empty
        return [empty(shape, strides, dtype) for shape, strides, dtype in self._types]

    def assemble(
        self,
        outputs: Sequence[torch.Tensor],
        arguments: Sequence[object],
        sized: Sequence[Shape | int] = (),
    ) -> object:
        """The model's results. sized: the shapes, and numbers, of this call, for the leaves that have them."""
        if self._plain:
            return self._assemble(iter(outputs))
        leaves: list[object] = []
        known = iter(sized)
        for leaf in self._leaves:
            match leaf:
                case SizeLeaf():
                    leaves.append(next(known))
                case OutputLeaf(index, row, shape) if shape:
                    out = outputs[index][row] if row else outputs[index]
                    leaves.append(_packed(out, next(known)))
                case OutputLeaf(index, row):
                    out = outputs[index][row] if row else outputs[index]
                    leaves.append(out.item() if leaf.number else out)
                case AliasLeaf(position):
                    leaves.append(arguments[position])
                case ValueLeaf(value):
                    leaves.append(value)
        return self._assemble(iter(leaves))


def _packed(x: torch.Tensor, shape: Shape | int) -> torch.Tensor:
    """The first elements of `x`, row-major, in the given shape."""
    assert not isinstance(shape, int)
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return x.as_strided(shape, strides[::-1])


def _is_flat(signature: Signature) -> bool:
    """Whether every argument is positional and a single leaf."""
    positional, keywords = signature.input_tree.children()
    return keywords.num_leaves == 0 and all(is_leaf(c) for c in positional.children())


def _dtype_words(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _type_words(leaf: TensorLeaf) -> str:
    shape = ", ".join(leaf.shape or map(str, leaf.tensor.shape))
    return f"[{shape}] {leaf.tensor.dtype.value}"
