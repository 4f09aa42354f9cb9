"""Symbolic versions of Python functions on sizes: `int(n * 0.75)`, `math.sqrt(n)`, `max(1, int(n / 2))`. And on tensors of one element, which give
tensors that stand for numbers: `float(error)`, `math.log(x.max().item())`.

Python's own `int`, and functions written in C, return a number, which would fix the size. In a module of the model that calls one of them on a size,
these names are replaced by functions that PyTorch can trace, until the model is exported.
"""

import builtins
import dis
import functools
import math
import operator
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType, ModuleType
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor

from monotile.frontends.torch.loops.tensor_numbers import (
    number,
    number_tensor,
    number_type,
    stands_for_number,
)
from monotile.frontends.torch.sizes.dtype_arguments import dtypes_by_builtin
from monotile.frontends.torch.tracing.type_and_len import length

_SYMBOLIC = (torch.SymInt, torch.SymFloat)
_sqrt: Any = torch._sym_sqrt  # pyright: ignore


class TensorsRead:
    """symbolically: whether these functions turn a traced tensor into one that stands for a number, instead of reading it."""

    symbolically: ClassVar[bool] = False


def _is_symbolic(x: Any) -> bool:
    """Whether `x` is a symbolic number: a symbol of PyTorch, or a tensor that stands for a number."""
    return isinstance(x, _SYMBOLIC) or stands_for_number(x)


def _read(x: Any) -> Any:
    """`x`; if it is a traced tensor of one element, its number, which may be symbolic."""
    traced = TensorsRead.symbolically and isinstance(x, FakeTensor) and not stands_for_number(x)
    one = traced and all(type(n) is int for n in x.shape) and x.numel() == 1
    return x.item() if one and not x.is_complex() else x


def _whole(x: Any, how: str) -> Any:
    """`math.trunc` and the like of a symbolic number."""
    if not stands_for_number(x):
        return getattr(math, how)(x)
    return number(getattr(torch, how)(x).to(torch.int64)) if x.is_floating_point() else x


class _Class(type):
    """Metaclass of a class that replaces Python's `own`: instances of `symbol` count as instances of it."""

    own: ClassVar[type]
    symbol: ClassVar[type]

    def __call__(cls, *args: Any, **named: Any) -> Any:
        args = tuple(map(_read, args))
        known = len(args) == 1 and _is_symbolic(args[0])
        return cls.of_size(args[0]) if known else cls.own(*args, **named)

    def of_size(cls, x: Any) -> Any:
        raise NotImplementedError

    def __instancecheck__(cls, instance: Any) -> bool:
        if stands_for_number(instance):
            return instance.dtype is number_type(cls.own())
        return isinstance(instance, (cls.own, cls.symbol))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.own)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.own, name)

    def __eq__(cls, other: object) -> bool:
        return other is cls.own or other is cls

    def __hash__(cls) -> int:
        return hash(cls.own)


class _Whole(_Class):
    own, symbol = int, torch.SymInt

    def of_size(cls, x: Any) -> Any:
        return x if isinstance(x, torch.SymInt) else _whole(x, "trunc")


class _Fraction(_Class):
    own, symbol = float, torch.SymFloat

    def of_size(cls, x: Any) -> Any:
        return number(x.to(torch.float64)) if stands_for_number(x) else torch.sym_float(x)


class _Int(metaclass=_Whole):
    """`int`."""


class _Float(metaclass=_Fraction):
    """`float`."""


def _of_size(own: Callable[..., Any], symbolic: Callable[[Any], Any]) -> Callable[..., Any]:
    """A function of one number, symbolic or not."""

    def function(*args: Any) -> Any:
        args = tuple(map(_read, args))
        known = len(args) == 1 and _is_symbolic(args[0])
        return symbolic(args[0]) if known else own(*args)

    return function


def _extremum(own: Callable[..., Any], symbolic: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """`min` or `max`."""

    def function(*args: Any, **named: Any) -> Any:
        numbers = all(isinstance(x, (int, float)) or _is_symbolic(x) for x in args)
        if named or len(args) < 2 or not numbers or not any(map(_is_symbolic, args)):
            return own(*args, **named)
        tensors = any(map(stands_for_number, args))
        return functools.reduce(partial(_of_tensors, own) if tensors else symbolic, args)

    return function


def _of_tensors(own: Callable[..., Any], x: Any, y: Any) -> torch.Tensor:
    """`min` or `max` of two numbers, of which tensors stand for some: a fraction if one is a fraction."""
    a, b = number_tensor(x), number_tensor(y)
    if a.dtype is not b.dtype:
        a, b = a.to(torch.float64), b.to(torch.float64)
    return number(torch.where(b < a if own is min else b > a, b, a))


def _in_tensor(name: str) -> Callable[[Any], torch.Tensor]:
    """A tensor function of PyTorch applied to a size; the result stands for a number."""
    of = getattr(torch, name)

    def function(x: Any) -> torch.Tensor:
        given = x if isinstance(x, torch.Tensor) else torch.scalar_tensor(x, dtype=torch.float64)
        return number(of(given.to(torch.float64)))

    return function


def _root(x: Any) -> Any:
    return _in_tensor("sqrt")(x) if stands_for_number(x) else _sqrt(x)


def _log(*args: Any) -> Any:
    args = tuple(map(_read, args))
    if not any(map(_is_symbolic, args)):
        return math.log(*args)
    found, *base = (_in_tensor("log")(x) for x in args)
    return number(found / base[0]) if base else found


# Of these functions, PyTorch's exported graphs support only square roots of sizes.
_IN_TENSORS = ("log2", "log10", "log1p", "exp", "expm1", "sin", "cos", "tan", "tanh", "atan")
_ROUNDED = ("ceil", "floor", "trunc")
_FUNCTIONS = {
    "sqrt": _of_size(math.sqrt, _root),
    **{n: _of_size(getattr(math, n), partial(_whole, how=n)) for n in _ROUNDED},
    "isqrt": _of_size(math.isqrt, lambda x: _whole(_root(x), "trunc")),
    "log": _log,
    "pow": lambda *args: operator.pow(*args) if isinstance(args[0], _SYMBOLIC) else math.pow(*args),
    **{n: _of_size(getattr(math, n), _in_tensor(n)) for n in _IN_TENSORS},
}
_MATH = ModuleType("math")
_MATH.__dict__.update(vars(math) | _FUNCTIONS)
_BUILTINS = {
    "int": _Int,
    "float": _Float,
    "min": _extremum(min, torch.sym_min),
    "max": _extremum(max, torch.sym_max),
    "len": length,
}
# By the identity of the functions that they replace: not every value in a module is hashable.
_INSTEAD = (
    {id(getattr(builtins, n)): new for n, new in _BUILTINS.items()}
    | {id(getattr(math, n)): new for n, new in _FUNCTIONS.items()}
    | {id(math): _MATH}
)


def _rounded(x: torch.Tensor, digits: int | None = None) -> Any:
    """`round` of a number that a tensor stands for: to an even number halfway, as Python's."""
    if digits is None:
        return _whole(x, "round")
    return number(torch.round(x, decimals=digits) if x.is_floating_point() else x)


# What Python's functions ask of numbers that tensors stand for.
_OF_NUMBERS = {
    "__divmod__": lambda x, y: (x // y, x % y),
    "__rdivmod__": lambda x, y: (y // x, y % x),
    "__round__": _rounded,
}

# NumPy calls these methods of objects.
_METHODS = {
    **{n: _FUNCTIONS[n] for n in ("sqrt", "log", *_IN_TENSORS) if n != "atan"},
    "__divmod__": lambda x, y: (x // y, x % y),
}


@contextmanager
def functions_take_sizes() -> Generator[None]:
    """Within, `numpy.sqrt`, `divmod` and the like take sizes, and `divmod` and `round` numbers that tensors stand for."""
    with ExitStack() as stack:
        for kind in _SYMBOLIC:
            for name, of in _METHODS.items():
                stack.enter_context(patch.object(kind, name, of, create=True))
        for name, of in _OF_NUMBERS.items():
            stack.enter_context(patch.object(FakeTensor, name, _if_number(of), create=True))
        yield


def _if_number(of: Callable[..., Any]) -> Callable[..., Any]:
    def method(x: FakeTensor, *args: Any) -> Any:
        if not stands_for_number(x):
            raise TypeError("divmod and round take no tensors")
        return of(x, *args)

    return method


_MISSING = object()


def names_used(frame: FrameType) -> set[str]:
    """The global names in the lines of the expression that `frame` is evaluating."""
    code = list(dis.get_instructions(frame.f_code))
    lines = [(x.positions.lineno, x.positions.end_lineno) for x in code if x.offset == frame.f_lasti and x.positions]  # fmt: skip
    first, last = next(iter(lines), (None, None))
    return {
        x.argval
        for x in code
        if x.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        and x.positions
        and x.positions.lineno
        and (first or 0) <= x.positions.lineno <= (last or 0)
    }


class SymbolicBuiltins:
    """Replaces builtins in the modules of a model, and restores them."""

    def __init__(self) -> None:
        self._before: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._types = ExitStack()

    def replace_in(self, frame: FrameType) -> bool:
        """Replaces the builtins in the module of `frame`. Returns whether that is new and concerns the expression that it is evaluating."""
        names = frame.f_globals
        if any(names is x for x, _ in self._before):
            return False
        loaded = names_used(frame)
        own = {n: getattr(builtins, n) for n in _BUILTINS} | names
        found = {n: _INSTEAD[id(x)] for n, x in own.items() if id(x) in _INSTEAD}
        if found.keys().isdisjoint(loaded):
            return False
        if not self._before:
            self._types.enter_context(dtypes_by_builtin(lambda x: x.own if isinstance(x, _Class) else x))  # fmt: skip
        self._before.append((names, {n: names.get(n, _MISSING) for n in found}))
        names.update(found)
        return True

    def restore(self) -> None:
        for names, before in self._before:
            names.update(before)
            for n in [n for n, x in before.items() if x is _MISSING]:
                del names[n]
        self._before.clear()
        self._types.close()
