"""Helpers that converted functions call at run time: see `conversion.py`."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree

from monotile.frontends.torch.branches.markers import as_tensor, branch, is_unknown, join, truth
from monotile.frontends.torch.branches.nonzero_loops import iterate_nonzero as iterate_nonzero
from monotile.frontends.torch.branches.side_effects import changes_tensors_only
from monotile.frontends.torch.loops.tensor_numbers import (
    number,
    number_tensor,
    number_type,
    stands_for_number,
)
from monotile.frontends.torch.tracing.containers import register_dataclasses

MISSING = object()  # value of an unassigned name
_CONSTANT = (bool, int, float, complex, str, type(None), slice, torch.dtype, torch.device)


class JoinError(BaseException):
    """The branches of an `if` cannot be joined: they leave different values that are not tensors of one type. Not an Exception, which the model might
    catch. line: of the `if`'s test."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class TracedIf:
    """One execution of an `if`. undecided: whether its test is a tensor, so that both branches run. line: of the test. open: whether a branch is running."""

    # Whether numbers that differ between the branches become tensors that stand for numbers.
    joins_numbers: ClassVar[bool] = False

    def __init__(self, test: Any, line: int) -> None:
        test = as_tensor(test) if is_unknown(test) else test
        self.undecided = isinstance(test, torch.Tensor)
        self.line, self.open = line, self.undecided
        self._test: Any = truth(test) if self.undecided else bool(test)
        if self.undecided:  # before both branches
            self._bools = [torch.full_like(self._test, x) for x in (False, True)]

    def then(self) -> bool:
        """Begins the first branch; returns whether it runs."""
        if self.undecided:
            branch(self._test, 0)
        return self.undecided or self._test

    def otherwise(self) -> bool:
        """Begins the second branch; returns whether it runs."""
        if self.undecided:
            branch(self._test, 1)
        return self.undecided or not self._test

    def end(self) -> None:
        """Both branches have run."""
        branch(self._test, 2)
        self.open = False

    def value(self, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """The value of a conditional expression."""
        if not self.undecided:
            return then() if self._test else otherwise()
        self.then()
        first = then()
        self.otherwise()
        second = otherwise()
        self.end()
        return self.select(first, second)

    def select(self, then: Any, otherwise: Any) -> Any:
        """The value of a name after both branches have run. Raises JoinError."""
        if then is otherwise:
            return then
        if then is MISSING or otherwise is MISSING:
            leaves, form = pytree.tree_flatten(otherwise if then is MISSING else then)
            pairs = ((None, x) if then is MISSING else (x, None) for x in leaves)
            return pytree.tree_unflatten([self._only(*pair) for pair in pairs], form)
        register_dataclasses((then, otherwise))
        left, form = pytree.tree_flatten(then)
        right, other = pytree.tree_flatten(otherwise)
        if form != other:
            raise JoinError(self.line)
        return pytree.tree_unflatten(list(map(self._leaf, left, right)), form)

    def flag(self, then: Any, otherwise: Any) -> Any:
        """As `select`, for a bool or a tensor of one bool; a tensor if the branches differ."""
        if then is otherwise:
            return then
        ways = (self._bools[x] if isinstance(x, bool) else x for x in (then, otherwise))
        return join(self._test, *ways)

    def _only(self, then: Any, otherwise: Any) -> Any:
        found = otherwise if then is None else then
        if not isinstance(found, torch.Tensor):
            return found
        joined = join(self._test, then, otherwise)
        return number(joined) if stands_for_number(found) else joined

    def _leaf(self, then: Any, otherwise: Any) -> Any:
        if then is otherwise:
            return then
        if self._are_joined_numbers(then, otherwise):
            return number(join(self._test, number_tensor(then), number_tensor(otherwise)))
        if self.joins_numbers:
            then, otherwise = _like_scalar(then, otherwise), _like_scalar(otherwise, then)
        if isinstance(then, torch.Tensor) and isinstance(otherwise, torch.Tensor):
            types = [(x.shape, x.dtype, x.device) for x in (then, otherwise)]
            if types[0] != types[1]:
                raise JoinError(self.line)
            return join(self._test, then, otherwise)
        if isinstance(then, _CONSTANT) and type(then) is type(otherwise) and then == otherwise:
            return then
        raise JoinError(self.line)

    def _are_joined_numbers(self, then: Any, otherwise: Any) -> bool:
        """Whether both are numbers of one type, of which a tensor is to stand for the right one."""
        kind = number_type(then)
        if kind is None or kind is not number_type(otherwise):
            return False
        tensors = stands_for_number(then) or stands_for_number(otherwise)
        return tensors or (self.joins_numbers and then != otherwise)

    def changed(self, x: Any) -> Any:
        """`x`, which a branch changes in place. Raises JoinError if both branches run and it is not a tensor: the other branch would see the change."""
        if self.undecided and not isinstance(x, torch.Tensor):
            raise JoinError(self.line)
        return x

    def kept(self, owner: Any, name: str, value: Any) -> Any:
        """`value`, which a branch assigns to an attribute. Raises JoinError if both branches run, unless the attribute has that value already."""
        old = getattr(owner, name, MISSING)
        same = isinstance(value, _CONSTANT) and type(old) is type(value) and old == value
        if self.undecided and not (old is value or same):
            raise JoinError(self.line)
        return value

    def called(self, function: Any) -> Any:
        """`function`, which a branch calls for its effect. Raises JoinError if both branches run and it may change more than tensors."""
        if self.undecided and not changes_tensors_only(function):
            raise JoinError(self.line)
        return function

    def added_to(self, x: Any) -> None:
        """`x` is a name's value before `+=` and the like. Raises JoinError if that would change an object that both branches see."""
        if self.undecided and not isinstance(x, (torch.Tensor, tuple, *_CONSTANT)):
            raise JoinError(self.line)


def _like_scalar(x: Any, other: Any) -> Any:
    """A number as a tensor without dimensions if `other` is one; anything else as it is."""
    scalar = isinstance(other, torch.Tensor) and not other.ndim and not stands_for_number(other)
    if not scalar or isinstance(x, bool) or not isinstance(x, int | float):
        return x
    fits = other.is_floating_point() or (isinstance(x, int) and other.dtype is not torch.bool)
    return torch.full((), x, dtype=other.dtype, device=other.device) if fits else x


def logical_and(*values: Callable[[], Any]) -> Any:
    """`and` that accepts tensors."""
    found: Any = True
    for value in values:
        new = value()
        tensors = [x for x in (found, new) if isinstance(x, torch.Tensor)]
        if not isinstance(new, torch.Tensor) and not new:
            return new
        found = new if not tensors else _all([truth(x) for x in tensors])
    return found


def logical_or(*values: Callable[[], Any]) -> Any:
    """`or` that accepts tensors."""
    found: Any = False
    for value in values:
        new = value()
        tensors = [x for x in (found, new) if isinstance(x, torch.Tensor)]
        if not isinstance(new, torch.Tensor) and new:
            return new
        found = new if not tensors else ~_all([~truth(x) for x in tensors])
    return found


def _all(truths: list[torch.Tensor]) -> torch.Tensor:
    found = truths[0]
    for x in truths[1:]:
        found = found & x
    return found


def logical_not(x: Any) -> Any:
    """`not` that accepts tensors."""
    return ~truth(x) if isinstance(x, torch.Tensor) else not x
