"""Lists and ranges of dynamic length, while a model is traced.

A list from `x.unbind(1)`, or from a loop that appends to it and is traced once (`traced_loop.py`), is a `Stacked` list: its items are slices of
one tensor.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, SupportsIndex

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from monotile.errors import CaptureError
from monotile.frontends.torch.loops.tensor_numbers import IndexRange, number
from monotile.frontends.torch.origin import describe_frame, is_users, users_frame

_CAT = frozenset({torch.cat, torch.concat, torch.concatenate})
_HOW = "loop over it with a Python `for`, or stack it (torch.stack, torch.cat) and compute with the tensor"

_WITHIN = "in that loop it may only be appended to, and its last item read if it has one before the loop; write other values that are read into a tensor, out[:, t] = h"


def is_symbolic(x: Any) -> bool:
    """Whether `x` is a symbolic size, also one that depends on data, or a number computed from such."""
    return isinstance(x, torch.SymInt | torch.SymFloat) and x.node.maybe_as_int() is None


def is_dynamic(x: Any) -> bool:
    """Whether `x` is a symbolic size of the call's arguments, or a number computed from such; not a data-dependent size."""
    if not is_symbolic(x):
        return False
    named: Any = x.node.expr.free_symbols
    return not any(symbol_is_type(s, SymT.UNBACKED_INT) for s in named)


class Run:
    """`count` consecutive items of a list. value: like one item, with tensors stacked along a new first dimension."""

    def __init__(self, count: Any, value: Any) -> None:
        self.count, self.value = count, value

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """`torch.stack` and `torch.cat` of lists that contain runs."""
        del types

        def joined(tensors: Iterable[Any], dim: int = 0, axis: int | None = None) -> torch.Tensor:
            dim, parts = dim if axis is None else axis, raw_items(tensors)
            if func is torch.stack:
                whole = _whole(parts)
                return whole.movedim(0, dim) if dim else whole
            return torch.cat([_flat(x, dim) for x in parts], dim)

        if func is not torch.stack and func not in _CAT:
            raise _refused(f"torch.{getattr(func, '__name__', func)} of it")
        named = dict(kwargs or {})
        named.pop("out", None)
        return joined(*args, **named)


def _flat(x: Any, dim: int) -> torch.Tensor:
    """The items of a run, concatenated along `dim`."""
    if not isinstance(x, Run):
        return x
    value: torch.Tensor = x.value
    dim = dim % (value.ndim - 1)
    return value.movedim(0, dim).flatten(dim, dim + 1)


def raw_items(items: Iterable[Any]) -> list[Any]:
    """The items and runs of a list."""
    return list(list.__iter__(items) if isinstance(items, list) else items)


def _whole(parts: Sequence[Any]) -> Any:
    """All items stacked along a first dimension, like the value of a run."""
    values = [x.value if isinstance(x, Run) else _alone(x) for x in parts]
    if len(values) == 1:
        return values[0]
    leaves, forms = zip(*map(pytree.tree_flatten, values), strict=True)
    if any(form != forms[0] for form in forms):
        raise _refused("it, which has items of different structure,")
    joined = [torch.cat(x) if isinstance(x[0], torch.Tensor) else x[0] for x in zip(*leaves, strict=True)]  # fmt: skip
    return pytree.tree_unflatten(joined, forms[0])


def _alone(x: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.unsqueeze(0), x)


def reversed_run(run: Run) -> Run:
    """Its items in reverse order."""
    return Run(run.count, pytree.tree_map_only(torch.Tensor, lambda x: x.flip(0), run.value))


def interleaved(items: Sequence[Any], count: Any) -> Run:
    """The items that `count` iterations have appended, several each. items: for each of these the values of all iterations, stacked."""
    if len(items) == 1:
        return Run(count, items[0])
    leaves, forms = zip(*map(pytree.tree_flatten, items), strict=True)
    if any(form != forms[0] for form in forms):
        raise _refused("it, which has items of different structure,")
    joined = [torch.stack(x, 1).flatten(0, 1) if isinstance(x[0], torch.Tensor) else x[0] for x in zip(*leaves, strict=True)]  # fmt: skip
    return Run(count * len(items), pytree.tree_unflatten(joined, forms[0]))


def _refused(what: str, how: str = _HOW) -> CaptureError:
    frame = users_frame(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    return CaptureError(
        f"at {describe_frame(frame)}: the length of a list depends on a size of dynamic_shapes, and {what} is not supported: {how}"
    )


class Stacked(list[Any]):
    """A list of items and runs, of dynamic length."""

    asks: Callable[[FrameType], None] | None = None  # called with the frame that iterates over one

    @property
    def length(self) -> Any:
        return sum(x.count if isinstance(x, Run) else 1 for x in raw_items(self))

    def parts(self) -> list[Any]:
        return raw_items(self)

    def whole(self) -> Any:
        return _whole(raw_items(self))

    def at(self, place: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda x: x[place], self.whole())

    def __iter__(self) -> Iterator[Any]:
        self._ask(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        count = int(self.length)
        return iter([self.at(k) for k in range(count)])

    def __reversed__(self) -> Iterator[Any]:
        self._ask(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return iter(self[::-1])

    def __getitem__(self, place: Any) -> Any:
        items = raw_items(self)
        if isinstance(place, slice) and place == slice(None, None, -1):
            return Stacked(reversed_run(x) if isinstance(x, Run) else x for x in reversed(items))
        if isinstance(place, slice):
            if place.step not in (None, 1):
                raise _refused("a slice of it with a step")
            value = self.at(place)
            return Stacked([Run(pytree.tree_leaves(value)[0].shape[0], value)])
        end = place if type(place) is int and place in (0, -1) else None
        if end is not None and items:  # no guard on the other items' shapes
            found = items[end]
            if not isinstance(found, Run):
                return found
            return pytree.tree_map_only(torch.Tensor, lambda x: x[end], found.value)
        return self.at(place)

    def __len__(self) -> int:
        self._ask(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return int(self.length)

    def __bool__(self) -> bool:
        return bool(self.length > 0)

    def __add__(self, other: Iterable[Any]) -> "Stacked":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Stacked([*raw_items(self), *raw_items(other)])

    def __radd__(self, other: Iterable[Any]) -> "Stacked":
        return Stacked([*raw_items(other), *raw_items(self)])

    def __iadd__(self, other: Iterable[Any]) -> "Stacked":  # pyright: ignore[reportIncompatibleMethodOverride]
        self.extend(other)
        return self

    def extend(self, other: Iterable[Any]) -> None:
        super().extend(raw_items(other))

    def reverse(self) -> None:
        items = raw_items(self[::-1])
        self.clear()
        self.extend(items)

    def copy(self) -> "Stacked":
        return Stacked(raw_items(self))

    def _ask(self, frame: FrameType) -> None:
        asks = Stacked.asks
        if asks is not None and is_dynamic(self.length) and is_users(frame.f_code.co_filename):
            asks(frame)

    def _no(self, *_: Any, **__: Any) -> Any:
        raise _refused("this")

    pop = remove = index = count = sort = __contains__ = __mul__ = __rmul__ = __imul__ = _no  # pyright: ignore[reportAssignmentType]
    __setitem__ = __delitem__ = __eq__ = __lt__ = __gt__ = _no  # pyright: ignore[reportAssignmentType]


class _Before:
    """Stands for the items that earlier iterations have appended to a list."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del func, types, args, kwargs
        raise _refused_within()


class Growing(list[Any]):
    """A list inside the body of a loop that appends to it. new: the items of this iteration; front: those inserted at the front. last: the last item."""

    def __init__(
        self, before: list[Any], last: torch.Tensor | None, length: Any, new: Iterable[Any] = ()
    ) -> None:
        """length: before this iteration."""
        super().__init__([_Before(), *new])
        self.front: list[Any] = []
        self._before, self._last, self._length = before, last, length

    @property
    def new(self) -> list[Any]:
        return raw_items(self)[1:]

    @property
    def last(self) -> Any:
        return self.new[-1] if self.new else self._last

    @property
    def length(self) -> Any:
        return self._length + len(self.new) + len(self.front)

    def __getitem__(self, place: Any) -> Any:
        if type(place) is not int or place != -1 or self.last is None:
            raise _refused_within()
        return self.last

    def __bool__(self) -> bool:
        if not (self._before or self.new):
            raise _refused_within()
        return True

    def __add__(self, other: Iterable[Any]) -> "Growing":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Growing(self._before, self._last, self._length, [*self.new, *other])

    def __iadd__(self, other: Iterable[Any]) -> "Growing":  # pyright: ignore[reportIncompatibleMethodOverride]
        self.extend(other)
        return self

    def insert(self, place: SupportsIndex, x: Any) -> None:
        if type(place) is not int or place != 0:
            raise _refused_within()
        self.front.insert(0, x)

    def _no(self, *_: Any, **__: Any) -> Any:
        raise _refused_within()

    __iter__ = __len__ = __reversed__ = pop = remove = index = sort = reverse = _no  # pyright: ignore[reportAssignmentType]
    __setitem__ = __delitem__ = __contains__ = __radd__ = copy = clear = _no  # pyright: ignore[reportAssignmentType]


def _refused_within() -> CaptureError:
    return _refused("reading it in the loop that appends to it", _WITHIN)


class LoopItems:
    """The items that a loop iterates over. at: returns item k, an int or a tensor."""

    def __init__(self, count: Any, at: Callable[[Any], Any]) -> None:
        self.count, self.at = count, at


def loop_items(x: Any) -> LoopItems | None:
    """The items of `x`; None if a loop over `x` has a fixed number of iterations."""
    if isinstance(x, LoopItems):
        return x
    if isinstance(x, Stacked):
        return LoopItems(x.length, x.at) if is_dynamic(x.length) else None
    if isinstance(x, FakeTensor) and x.ndim and is_dynamic(x.shape[0]):
        return LoopItems(x.shape[0], lambda k: x[k])
    return None


def call_in_head(function: Any, *args: Any, **named: Any) -> Any:
    """`function(*args)` in the head of a loop: `range`, `len`, `enumerate`, `zip` and `reversed` of dynamic lengths."""
    if function is range and any(map(is_dynamic, args)) and not named:
        return _range_items(*args)
    if function is len and len(args) == 1 and (known := loop_items(args[0])) is not None:
        return known.count
    parts = [loop_items(x) for x in args] if function in (enumerate, zip, reversed) else []
    if not any(parts):
        return function(*args, **named)
    if function is enumerate:
        start = named.get("start", args[1] if len(args) > 1 else 0)
        first = parts[0]
        assert first is not None
        return LoopItems(first.count, lambda k: (k + start, first.at(k)))
    if function is reversed:
        (first,) = parts
        assert first is not None
        return LoopItems(first.count, lambda k: first.at(first.count - 1 - k))
    known = [x for x in parts if x is not None]
    if len(known) < len(parts):
        raise _refused("zip of it with an iterable of fixed length")
    count = known[0].count
    for x in known[1:]:
        same = count.node.expr == x.count.node.expr
        count: Any = count if same else torch.sym_min(count, x.count)
    return LoopItems(count, lambda k: tuple(x.at(k) for x in known))


def range_items(numbers: range) -> LoopItems:
    """The items of a range of fixed length."""
    return _range_items(numbers.start, numbers.stop, numbers.step)


def _range_items(start: Any, end: Any = None, step: SupportsIndex = 1) -> LoopItems:
    start, end = (0, start) if end is None else (start, end)
    if is_dynamic(step):
        raise _refused("a range with a dynamic step")
    step = int(step)
    ahead = end - start if step > 0 else start - end
    count = ahead if abs(step) == 1 else (ahead + abs(step) - 1) // abs(step)
    if lower_bound(count) < 0:
        count = torch.sym_max(count, 0)

    range_items = IndexRange(*((start, end - 1) if step > 0 else (end + 1, start)), object())

    def at(k: Any) -> Any:
        ahead = k if step == 1 else k * step
        found = start + ahead if is_dynamic(start) or start else ahead
        return number(found, range_items) if isinstance(found, torch.Tensor) else found

    return LoopItems(count, at)


def lower_bound(count: Any) -> int:
    """The lower bound of a size. No size of the model's arguments is 0 (`sizes/ranges.py`)."""
    if not isinstance(count, torch.SymInt):
        return int(count)
    ranges = count.node.shape_env.var_to_range
    from_one = {
        s: ValueRanges(1 if ranges[s].lower <= 2 else ranges[s].lower, ranges[s].upper)
        for s in count.node.expr.free_symbols
    }
    found: Any = bound_sympy(count.node.expr, from_one)
    return int(found.lower) if found.lower.is_finite else -1
