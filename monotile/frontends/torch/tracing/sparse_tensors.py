"""Sparse matrices of PyTorch in a trace: those that the model holds, and those that it makes of indices and values.

A kernel has dense tensors only. While a model is traced a sparse matrix is a `Coordinates`, an object with the methods of one, and a product with it
gathers rows and adds them up.
"""

import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from monotile.errors import CaptureError
from monotile.frontends.torch.origin import describe_frame, users_frame

SPARSE = (
    "sparse tensors are no arguments: pass x.indices() and x.values(), of which forward makes torch.sparse_coo_tensor, let the model hold"
    " the tensor, or pass x.to_dense()"
)


def is_sparse(x: object) -> bool:
    """Whether `x` is a sparse tensor, of any layout."""
    return isinstance(x, Tensor) and x.layout is not torch.strided


class Coordinates:
    """A sparse matrix of `shape`: values [n] at indices [2, n]; those of the same element are added."""

    is_sparse, layout, requires_grad, ndim = True, torch.sparse_coo, False, 2

    def __init__(self, indices: Tensor, values: Tensor, shape: tuple[int, ...]) -> None:
        self._at, self._of, self.shape = indices, values, torch.Size(shape)

    dtype = property(lambda self: self._of.dtype)
    device = property(lambda self: self._of.device)
    T = property(lambda self: self.t())

    def indices(self) -> Tensor:
        return self._at

    def values(self) -> Tensor:
        return self._of

    _indices, _values = indices, values

    def _nnz(self) -> int:
        return self._of.shape[0]

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return 2

    def is_coalesced(self) -> bool:
        return True

    def coalesce(self) -> "Coordinates":
        return self

    detach = clone = requires_grad_ = to_sparse = to_sparse_coo = coalesce

    def t(self) -> "Coordinates":
        return Coordinates(self._at.flip(0), self._of, self.shape[::-1])

    def transpose(self, first: int, second: int) -> "Coordinates":
        return self if first % 2 == second % 2 else self.t()

    def to(self, *args: Any, **named: Any) -> "Coordinates":
        return Coordinates(self._at, self._of.to(*args, **named), self.shape)

    def float(self) -> "Coordinates":
        return self.to(torch.float32)

    def to_dense(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device).index_put(
            tuple(self._at), self._of, accumulate=True
        )

    def mm(self, x: Any) -> Tensor:
        """`self @ x`, of a dense vector or matrix."""
        if not isinstance(x, Tensor):
            raise _refusal("a product with another")
        rows, columns = self._at
        factors = self._of if x.dim() == 1 else self._of[:, None]
        terms = x[columns] * factors
        return terms.new_zeros((self.shape[0], *x.shape[1:])).index_add(0, rows, terms)

    matmul = __matmul__ = mm

    def __rmatmul__(self, x: Tensor) -> Tensor:
        return self.t().mm(x.mT).mT if x.dim() == 2 else self.t().mm(x)

    def __mul__(self, factor: Any) -> "Coordinates":
        return Coordinates(self._at, self._of * _scalar(factor), self.shape)

    __rmul__ = mul = __mul__

    def __truediv__(self, divisor: Any) -> "Coordinates":
        return Coordinates(self._at, self._of / _scalar(divisor), self.shape)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refusal(f".{name}")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        name = getattr(func, "__name__", str(func))
        if (instead := _FUNCTIONS.get(name)) is None:
            raise _refusal(name)
        return instead(*args, **(kwargs or {}))


def _scalar(x: Any) -> Any:
    if isinstance(x, Coordinates) or (isinstance(x, Tensor) and x.dim()):
        raise _refusal("a product with another")
    return x


def _refusal(what: str) -> CaptureError:
    where = describe_frame(users_frame(sys._getframe(1)))  # pyright: ignore[reportPrivateUsage]
    return CaptureError(
        f"{what} of a sparse tensor has no lowering, at {where}: products with dense tensors have; others can be written with its indices()"
        " and values(), or with to_dense()"
    )


def _product(a: Any, b: Any) -> Tensor:
    return a @ b if isinstance(a, Coordinates) else b.__rmatmul__(a)


def _added(x: Tensor, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return x * beta + _product(a, b) * alpha


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("mm", "spmm", "matmul", "_sparse_mm", "__matmul__", "mv"), _product),
    "__rmatmul__": lambda b, a: _product(a, b),
    **dict.fromkeys(("addmm", "_sparse_addmm", "sspaddmm"), _added),
    "t": Coordinates.t,
    "transpose": Coordinates.transpose,
    **dict.fromkeys(("mul", "multiply"), lambda a, b: a * b),
    "is_tensor": lambda _: True,
}


@contextmanager
def sparse_matrices_are_traced(model: nn.Module) -> Generator[None]:
    """Within, `model` has `Coordinates` for the sparse matrices that it holds and makes."""
    plain, dense = torch.sparse_coo_tensor, Tensor.to_sparse

    def made(indices: Any, values: Any = None, size: Any = None, **named: Any) -> Any:
        if not any(isinstance(x, FakeTensor) for x in (indices, values)):
            return plain(indices, values, size, **named)
        if size is None or indices.shape[0] != 2 or len(size) != 2:
            raise _refusal("sparse_coo_tensor without a size, or not of two dimensions,")
        given = values.to(device=named.get("device"), dtype=named.get("dtype"))
        return Coordinates(indices, given, tuple(size))

    def taken(x: Tensor, *args: Any, **named: Any) -> Any:
        if not isinstance(x, FakeTensor) or args or named or x.dim() != 2:
            return dense(x, *args, **named)
        at = x.nonzero().unbind(1)
        return Coordinates(torch.stack(at), x[at], tuple(x.shape))

    undo = [_replace(module, name, value) for module, name, value in list(_held(model))]
    try:
        with (
            patch.object(torch, "sparse_coo_tensor", made),
            patch.object(torch.sparse, "FloatTensor", made),
            patch.object(Tensor, "to_sparse", taken),
        ):
            yield
    finally:
        for back in undo:
            back()


def _held(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Attributes that are sparse tensors, or lists, tuples and dicts with some."""
    for module in model.modules():
        held = vars(module)
        for name, value in [*held["_buffers"].items(), *held.items()]:
            plain = isinstance(value, Tensor | list | tuple | dict) and not name.startswith("_")
            if plain and any(map(is_sparse, pytree.tree_leaves(value))):
                yield module, name, value


def _replace(module: nn.Module, name: str, value: Any) -> Callable[[], None]:
    """Gives `module` another value of the attribute; the result undoes that."""
    held = vars(module)
    buffers: dict[str, Any] | None = held["_buffers"] if name in held["_buffers"] else None
    order = list(buffers or ())
    if buffers is not None:
        del buffers[name]
    held[name] = pytree.tree_map_only(Tensor, lambda x: _coordinates(x, name), value)

    def back() -> None:
        del held[name]
        if buffers is None:
            held[name] = value
            return
        buffers[name] = value
        for k in order:
            buffers[k] = buffers.pop(k)

    return back


def _coordinates(x: Tensor, name: str) -> Any:
    if not is_sparse(x):
        return x
    if x.dim() != 2 or x.dense_dim():
        raise CaptureError(f"{name} is a sparse tensor that is no matrix: use to_dense()")
    whole = x.detach().to_sparse_coo().coalesce()
    return Coordinates(whole.indices().clone(), whole.values().clone(), tuple(x.shape))
