"""Run-time helpers of converted functions: see `conversion.py`."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monotile.frontends.torch.branches.effects import changes_tensors_only
from monotile.frontends.torch.branches.hits import hits as hits
from monotile.frontends.torch.branches.marks import as_tensor, choose, is_unknown, side, truth

MISSING = object()  # value of an unassigned name
_CONSTANT = (bool, int, float, complex, str, type(None), slice, torch.dtype, torch.device)


class Unjoinable(BaseException):
    """The sides of an `if` cannot be joined behind it: they leave different values that are not tensors of one type. No Exception, which the
    model might catch. line: of the `if`'s test."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class Choice:
    """One `if` at a time. undecided: whether its test is a tensor, so that both sides run. line: where the test is. open: whether a side runs."""

    def __init__(self, test: Any, line: int) -> None:
        test = as_tensor(test) if is_unknown(test) else test
        self.undecided = isinstance(test, torch.Tensor)
        self.line, self.open = line, self.undecided
        self._test: Any = truth(test) if self.undecided else bool(test)
        if self.undecided:  # ahead of the sides
            self._bools = [torch.full_like(self._test, x) for x in (False, True)]

    def then(self) -> bool:
        """Whether the first side runs, which begins here."""
        if self.undecided:
            side(self._test, 0)
        return self.undecided or self._test

    def otherwise(self) -> bool:
        """Whether the second side runs, which begins here."""
        if self.undecided:
            side(self._test, 1)
        return self.undecided or not self._test

    def end(self) -> None:
        """Both sides have run."""
        side(self._test, 2)
        self.open = False

    def value(self, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Of a conditional expression."""
        if not self.undecided:
            return then() if self._test else otherwise()
        self.then()
        first = then()
        self.otherwise()
        second = otherwise()
        self.end()
        return self.select(first, second)

    def select(self, then: Any, otherwise: Any) -> Any:
        """The value of a name after both sides have run. Raises Unjoinable."""
        if then is otherwise:
            return then
        if then is MISSING or otherwise is MISSING:
            leaves, form = pytree.tree_flatten(otherwise if then is MISSING else then)
            pairs = ((None, x) if then is MISSING else (x, None) for x in leaves)
            return pytree.tree_unflatten([self._only(*pair) for pair in pairs], form)
        left, form = pytree.tree_flatten(then)
        right, other = pytree.tree_flatten(otherwise)
        if form != other:
            raise Unjoinable(self.line)
        return pytree.tree_unflatten(list(map(self._leaf, left, right)), form)

    def flag(self, then: Any, otherwise: Any) -> Any:
        """The same of a bool, or a tensor of one, which becomes one where the sides differ."""
        if then is otherwise:
            return then
        ways = (self._bools[x] if isinstance(x, bool) else x for x in (then, otherwise))
        return choose(self._test, *ways)

    def _only(self, then: Any, otherwise: Any) -> Any:
        found = otherwise if then is None else then
        return choose(self._test, then, otherwise) if isinstance(found, torch.Tensor) else found

    def _leaf(self, then: Any, otherwise: Any) -> Any:
        if then is otherwise:
            return then
        if isinstance(then, torch.Tensor) and isinstance(otherwise, torch.Tensor):
            types = [(x.shape, x.dtype, x.device) for x in (then, otherwise)]
            if types[0] != types[1]:
                raise Unjoinable(self.line)
            return choose(self._test, then, otherwise)
        if isinstance(then, _CONSTANT) and type(then) is type(otherwise) and then == otherwise:
            return then
        raise Unjoinable(self.line)

    def changed(self, x: Any) -> Any:
        """`x`, which a side changes where it lies. Raises Unjoinable where both sides run and it is no tensor: the other would see it."""
        if self.undecided and not isinstance(x, torch.Tensor):
            raise Unjoinable(self.line)
        return x

    def kept(self, owner: Any, name: str, value: Any) -> Any:
        """`value`, which a side gives an attribute. Raises Unjoinable where both sides run, unless it has that already: the other would see it."""
        old = getattr(owner, name, MISSING)
        same = isinstance(value, _CONSTANT) and type(old) is type(value) and old == value
        if self.undecided and not (old is value or same):
            raise Unjoinable(self.line)
        return value

    def called(self, function: Any) -> Any:
        """`function`, which a side calls for an effect. Raises Unjoinable where both sides run and the other might see more of it than of tensors."""
        if self.undecided and not changes_tensors_only(function):
            raise Unjoinable(self.line)
        return function

    def added_to(self, x: Any) -> None:
        """`x` is a name's value before `+=` and the like. Raises Unjoinable where that would change an object that both sides see."""
        if self.undecided and not isinstance(x, (torch.Tensor, tuple, *_CONSTANT)):
            raise Unjoinable(self.line)


def both(*values: Callable[[], Any]) -> Any:
    """`and` that accepts tensors."""
    found: Any = True
    for value in values:
        new = value()
        tensors = [x for x in (found, new) if isinstance(x, torch.Tensor)]
        if not isinstance(new, torch.Tensor) and not new:
            return new
        found = new if not tensors else _all([truth(x) for x in tensors])
    return found


def either(*values: Callable[[], Any]) -> Any:
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


def opposite(x: Any) -> Any:
    """`not` that accepts tensors."""
    return ~truth(x) if isinstance(x, torch.Tensor) else not x
