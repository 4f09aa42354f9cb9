"""Programs with sizes beside PyTorch: one capture for a range, evaluated at sizes of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from monotile.errors import InputError
from monotile.frontends.torch.capture import Captured, capture
from monotile.frontends.torch.types import to_numpy
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Program
from monotile.ir.signature import OutputLeaf, SizeLeaf, TensorLeaf
from monotile.ir.verify import verify
from monotile.runtime.sizes import SizeReader
from monotile.runtime.tensors import from_numpy

Args = tuple[torch.Tensor, ...]
GARBAGE = 10**6  # no index of any tensor


class Over(nn.Module):
    """A function as a module."""

    def __init__(self, f: Callable[..., object]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: torch.Tensor) -> object:
        return self.f(x)


class Sized:
    """`model` for a range of sizes. values, results: between a call's tensors and the Program's arrays."""

    def __init__(self, model: nn.Module, args: Args, dynamic_shapes: Any) -> None:
        with torch.no_grad():
            self.captured: Captured = capture(model.eval(), args, dynamic_shapes=dynamic_shapes)
        verify(self.captured.program)

    def __call__(self, *args: torch.Tensor) -> list[Any]:
        program = self.captured.program
        with np.errstate(all="ignore"):
            outputs = evaluate(program, self.values(program, args))
        return self.results(outputs, args)

    def takes(self, args: Args) -> bool:
        """Whether the model, which asks for sizes of 1, computes the same for them."""
        try:
            self.values(self.captured.program, args)
        except InputError as e:
            if "it takes another path" not in str(e) or 1 not in [n for x in args for n in x.shape]:  # fmt: skip
                raise
            return False
        return True

    def reader(self, program: Program) -> tuple[list[str], SizeReader]:
        names = [t.name for t in program.inputs if t.name in program.by_value]
        return names, SizeReader(self.captured.signature, names)

    def values(
        self,
        program: Program,
        args: Sequence[torch.Tensor],
        constants: Mapping[str, np.ndarray] | None = None,
    ) -> dict[str, np.ndarray]:
        """By input and weight. Behind what a call gives there is garbage."""
        names, reader = self.reader(program)
        sizes = reader.read(args, reader.symbols(args))
        found = {n: to_numpy(x) for n, x in self.captured.parameters.items()}
        found |= self.captured.constants if constants is None else constants
        types = {t.name: t.dtype.numpy for t in program.inputs}
        for n, v in zip(names, sizes.scalars, strict=True):
            found[n] = np.asarray(v, np.uint64).view(types[n])
        for leaf, x in zip(self.captured.signature.inputs, args, strict=True):
            assert isinstance(leaf, TensorLeaf)
            t, own = leaf.tensor, to_numpy(x).reshape(-1)
            fill = np.nan if t.dtype.is_float else GARBAGE if t.dtype.itemsize > 2 else 1
            whole = np.full(t.size, fill, t.dtype.numpy)
            whole[: own.size] = own
            found[t.name] = whole.reshape(t.shape)
        return found

    def results(self, outputs: Sequence[np.ndarray], args: Sequence[torch.Tensor]) -> list[Any]:
        """As the model gives them."""
        _, reader = self.reader(self.captured.program)
        known = iter(reader.read(args, reader.symbols(args)).results)
        found: list[Any] = []
        for leaf in self.captured.signature.outputs:
            if isinstance(leaf, SizeLeaf):
                found.append(next(known))
                continue
            assert isinstance(leaf, OutputLeaf)
            whole = outputs[leaf.index]
            for k in leaf.row:
                whole = whole[k]
            if leaf.shape:
                shape = next(known)
                whole = whole.reshape(-1)[: int(np.prod(shape))].reshape(shape)
            found.append(from_numpy(np.array(whole, order="C")))
        return found


def same(found: Sequence[Any], wanted: Any, tolerance: float = 2e-5) -> None:
    """As PyTorch's answer: in shapes, types and values."""
    leaves = list(wanted) if isinstance(wanted, tuple | list) else [wanted]
    assert len(found) == len(leaves)
    for x, y in zip(found, leaves, strict=True):
        if not isinstance(y, torch.Tensor):
            assert x == y
            continue
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance, equal_nan=True)


def check(
    model: nn.Module,
    make: Callable[..., Args],
    dynamic_shapes: Any,
    sizes: Sequence[tuple[int, ...]],
) -> Sized:
    """`model`, captured once, at all `sizes` but those for which it would be exported once more; `make` gives its arguments for one."""
    sized = Sized(model, make(*sizes[len(sizes) // 2]), dynamic_shapes)
    for size in sizes:
        args = make(*size)
        with torch.no_grad():
            if sized.takes(args):
                same(sized(*args), model(*args))
    return sized
