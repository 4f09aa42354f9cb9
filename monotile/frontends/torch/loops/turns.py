"""Loops that take as many turns as a size of the call says, while a model is traced: the body is traced once, between marks (`branches/marks.py`).

    for t in range(x.shape[1]):         turns = Turns(over(range, x.shape[1]), ...)
        h = self.cell(x[:, t], h)       with turns:
        outs.append(h)                      while turns.more(locals()):
    return torch.stack(outs, 1)                 h, outs = turns.names["h"], turns.names["outs"]     (in short)
                                                t = turns.item
                                                h = self.cell(x[:, t], h)
                                                outs.append(h)
                                        h, outs = turns.names["h"], turns.names["outs"]
                                        return torch.stack(outs, 1)

The body runs more than once. First it is tried, which leaves no trace: what it changes is then known (`carried.py`), and is undone. Where that changes its
type (`h = None` before the loop), the first turn is traced by itself. At last what it changes becomes what a loop carries, lists to which
it appends become `Stacked` ones, and a turn is traced for all.
"""

import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils import _pytree as pytree

from monotile.errors import CaptureError
from monotile.frontends.torch.branches.marks import turned, turns
from monotile.frontends.torch.branches.selection import MISSING
from monotile.frontends.torch.loops.carried import (
    Growth,
    Held,
    Place,
    is_same_leaf,
    kind,
    number_type,
    stays,
)
from monotile.frontends.torch.loops.heard import BegunError
from monotile.frontends.torch.loops.long import Head, is_long
from monotile.frontends.torch.loops.spans import Span, stands_for_number
from monotile.frontends.torch.loops.spans import number as as_number
from monotile.frontends.torch.loops.stacked import (
    Growing,
    Run,
    Stacked,
    backward,
    counted,
    interleaved,
    least,
    span,
)
from monotile.frontends.torch.loops.stacked import over as over
from monotile.frontends.torch.origin import describe_frame, is_users, users_frame

_HOW = "begin with a tensor of the shape and type that it has behind a turn, and collect what grows in a list (torch.stack behind the loop)"
Passes = Generator[None, Mapping[str, Any], None]


@dataclass
class Known:
    """Loops whose number of turns is known. turned: where those are of which each turn is traced. once: whether there is one that is traced once.
    long: which have been found (`long.py`)."""

    turned: set[str] = field(default_factory=set[str])
    once: bool = False
    long: set[Head] = field(default_factory=set[Head])


@contextmanager
def loops_traced_once() -> Generator[Known]:
    """Within, long loops are traced once (`long.py`)."""
    with patch.object(Turns, "known", Known()) as known:
        yield known


class Turns:
    """One loop at a time. undecided: whether the call decides how many turns it takes. names: what its names are bound to before a turn, and behind the
    loop. item: what its target is bound to. open: whether it runs."""

    # Where the loops are whose first turn is traced by itself, as their bodies fail otherwise.
    begun: ClassVar[set[str]] = set()
    # Those that take a known number of turns; None where each turn of these is traced.
    known: ClassVar[Known | None] = None

    def __init__(self, over: Any, names: Sequence[str], first: Iterable[str]) -> None:
        """names: those that it reads or leaves; first: those that a turn may read before it binds them."""
        self.where = describe_frame(users_frame(sys._getframe(1)))  # pyright: ignore[reportPrivateUsage]
        self._over = counted(over)
        self._is_known = self._over is None and self.known is not None and self.where not in self.known.turned and is_long(over)  # fmt: skip
        if self._is_known and self.known is not None:
            self._over, self.known.once = span(over), True
        self.undecided = self._over is not None
        self._plain = iter(()) if self.undecided else iter(over)
        self._listed, self._first = names, frozenset(first)
        self.names: dict[str, Any] = {}
        self.item: Any = None
        self.open = False
        self._passes: Passes | None = None
        self._tried = ExitStack()
        self._first_try = False

    def __enter__(self) -> None:
        self.open = self.undecided

    def __exit__(self, kind: Any, error: BaseException | None, *_: object) -> None:
        self._tried.close()
        fails = isinstance(error, Exception) and not isinstance(error, CaptureError)
        if fails and self._first_try and self._may_begin():
            self.begun.add(self.where)
            raise BegunError from error
        if self._is_known and self.known and ((self.open and kind is None) or isinstance(error, Exception)):  # fmt: skip
            self.known.turned.add(self.where)
            raise BegunError from error
        if self.open and kind is None:
            raise self.refusal("it is left by a break or return: compute all turns, and select what is wanted (torch.where)")  # fmt: skip
        self.open = False

    def more(self, names: Mapping[str, Any]) -> bool:
        """Whether the body runs once more. names: what the function's names are bound to."""
        if not self.undecided:
            self.item = next(self._plain, MISSING)
            return self.item is not MISSING
        try:
            if self._passes is None:
                self.names |= {n: names.get(n, MISSING) for n in self._listed}
                self._passes = self._run()
                next(self._passes)
            else:
                self._passes.send(names)
        except StopIteration:
            self.open = False
        return self.open

    def _run(self) -> Passes:
        over = self._over
        assert over is not None
        begun = 0
        places, growths = list[Place](), list[Growth]()
        if self.where not in self.begun:
            self._first_try = True
            places, growths = yield from self._try()
            self._first_try = False
        if self.where in self.begun or any(map(self._is_settled_late, places)):
            if not self._begins():
                self._refuse_change(places, "which may take no turn at all")
            self.item = over.at(0)
            names = yield
            self.names |= {n: names.get(n, MISSING) for n in self._listed}
            begun = 1
            places, growths = yield from self._try()
        self._refuse_change(places)
        self._refuse_numbers(places, begun)
        yield from self._all(begun, places, growths)

    def _may_begin(self) -> bool:
        """Whether there is a first turn in each call, which was not known to be needed."""
        return self.where not in self.begun and self._begins()

    def _begins(self) -> bool:
        """Whether there is a first turn in each call."""
        assert self._over is not None
        return least(self._over.count) > 0

    def _left(self, begun: int) -> Any:
        """How many turns there are but for the first `begun`."""
        assert self._over is not None
        return self._over.count - begun

    def _goes_on(self) -> list[torch.Tensor]:
        """What says whether there is a next turn, where that is no number of turns."""
        return []

    def _try(self) -> Generator[None, Mapping[str, Any], tuple[list[Place], list[Growth]]]:
        """A turn that leaves no trace: what it changes."""
        assert self._over is not None
        held = Held(self.names)
        if held.goes_on():
            raise self.refusal(
                "it reads what holds an iterator, of which each turn would take items: index a list"
            )
        with self._tried:
            self._tried.enter_context(disable_proxy_modes_tracing())
            self.item = self._item(torch.empty((), dtype=torch.int64), 0)
            names = yield
        found = self._changed(held, names)
        held.restore()
        return found

    def _item(self, turn: torch.Tensor, begun: int) -> Any:
        """What the target is bound to. begun: turns that are traced by themselves."""
        assert self._over is not None
        place = as_number(turn, Span(0, self._over.count - 1 - begun, object()))
        return self._over.at(place + begun if begun else place)

    def _changed(self, held: Held, names: Mapping[str, Any]) -> tuple[list[Place], list[Growth]]:
        try:
            return held.changed(names)
        except KeyError:
            raise self.refusal("its body removes items of a list, dictionary or set: keep a fixed number of tensors, or leave the size out of dynamic_shapes") from None  # fmt: skip

    def _is_settled_late(self, place: Place) -> bool:
        """Whether a place is otherwise before the first turn than before the others."""
        if place.before is MISSING:
            return place.holder is not self.names or place.key in self._first
        (old, form), (new, other) = map(pytree.tree_flatten, (place.before, place.after))
        return form != other or not all(map(_stays_at_once, old, new))

    def _refuse_change(self, places: Sequence[Place], also: str = "") -> None:
        for place in places:
            if place.before is MISSING and not (also and self._is_settled_late(place)):
                continue
            (old, form), (new, other) = map(pytree.tree_flatten, (place.before, place.after))
            if form != other or not all(map(stays, old, new)):
                raise self.mismatch(place.name, place.before, place.after, also)

    def _refuse_numbers(self, places: Sequence[Place], begun: int) -> None:
        """Refuses what turns count, where each could know its number: what is asked of it would be an operator."""
        for place in places:
            if begun and place.before is MISSING and place.holder is not self.names:
                raise self.refusal(f"a turn adds {place.name}, and the next would add another: collect what grows in a list")  # fmt: skip
            old, new = (pytree.tree_leaves(x) for x in (place.before, place.after))
            counts = place.before is not MISSING and not all(map(is_same_leaf, old, new)) and any(map(number_type, new))  # fmt: skip
            if self._is_known and (counts or any(map(stands_for_number, new))):
                raise self.refusal(f"{place.name} is a number")

    def mismatch(self, name: str, before: Any, after: Any, also: str = "") -> CaptureError:
        return self.refusal(
            f"{name} is {kind(before)} before a turn{f' of the loop, {also},' if also else ''} and {kind(after)} behind it: {_HOW}"
        )

    def refusal(self, text: str) -> CaptureError:
        return CaptureError(
            f"at {self.where}: this loop takes as many turns as a size of dynamic_shapes says, and {text}"
        )

    def _all(self, begun: int, places: Sequence[Place], growths: Sequence[Growth]) -> Passes:
        """The turn that is traced for all but the first `begun`."""
        assert self._over is not None
        carried = [_Carried(p) for p in places]
        count = self._left(begun)
        lasts = [_last(g) for g in growths]
        firsts = [x for c in carried for x in c.first]
        kept = [*firsts, *(x for x in lasts if x is not None)]
        turn, *given = turns(count, [*kept, *self._goes_on()])
        fresh = iter(given)
        for c in carried:
            c.begin(fresh)
        for g, last in zip(growths, lasts, strict=True):
            length = Stacked(g.before).length + as_number(turn) * len(g.new)
            made = Growing(g.before, None if last is None else next(fresh), length)
            if not g.places or self._is_callers(g.whole):
                raise self.refusal("its body appends to a list that is not the function's own: append to a new list, and return it")  # fmt: skip
            for place in g.places:
                place.put(made)
        held = Held(self.names)
        self.item = self._item(turn, begun)
        names = yield
        self._check(held, names, carried)
        kept = [x for c in carried for x in c.last(self, names)]
        lists = [self._now(g, names) for g in growths]
        kept += [x.last for x, last in zip(lists, lasts, strict=True) if last is not None]
        each, form = pytree.tree_flatten([(x.front, x.new) for x in lists])
        each_turn = [x for x in each if isinstance(x, torch.Tensor)]
        found = iter(turned(count, [*kept, *self._goes_on()], each_turn))
        self.names |= {n: names.get(n, MISSING) for n in self._listed}
        for c in carried:
            c.end(found)
        for _ in filter(lambda last: last is not None, lasts):
            next(found)
        values = [next(found) if isinstance(x, torch.Tensor) else x for x in each]
        for g, (front, new) in zip(growths, pytree.tree_unflatten(values, form), strict=True):
            ahead = [backward(interleaved(front[::-1], count))] if front else []
            behind = [interleaved(new, count)] if new else []
            made = Stacked([*ahead, *g.before, *behind])
            for place in g.places:
                place.put(made)
            g.whole.clear()  # whoever knows it by another name cannot read it as it was
            g.whole.extend(made.parts())

    def _is_callers(self, x: list[Any]) -> bool:
        """Whether a caller of the loop's function has a name for `x`, which it would not know as it is behind the loop."""
        frame = users_frame(sys._getframe(1)).f_back  # pyright: ignore[reportPrivateUsage]
        while frame is not None:
            if is_users(frame.f_code.co_filename) and any(y is x for y in frame.f_locals.values()):
                return True
            frame = frame.f_back
        return False

    def _now(self, growth: Growth, names: Mapping[str, Any]) -> Growing:
        place = growth.places[0]
        own = place.holder is self.names
        value = names.get(place.key) if own else place.holder[place.key]
        if not isinstance(value, Growing):
            raise self.mismatch(place.name, place.before, value)
        return value

    def _check(self, held: Held, names: Mapping[str, Any], carried: Sequence["_Carried"]) -> None:
        """Refuses what only a later turn changes."""
        known = {c.place.at for c in carried}
        places, growths = self._changed(held, names)
        for place in places:
            if place.at not in known and not isinstance(place.before, Growing):
                raise self.mismatch(place.name, place.before, place.after)
        if growths:
            raise self.refusal("its body appends to a list in some turns only")


def _stays_at_once(x: Any, y: Any) -> bool:
    """As `stays`, of the first turn: after which a flag may stay as it is."""
    return stays(x, y) and (is_same_leaf(x, y) or not isinstance(x, bool))


def _last(growth: Growth) -> torch.Tensor | None:
    """The last item of a list, if each turn's last one has its type."""
    if not growth.before or not growth.new:
        return None
    item, new = growth.before[-1], growth.new[-1]
    item = item.value[-1] if isinstance(item, Run) and isinstance(item.value, torch.Tensor) else item  # fmt: skip
    return item if isinstance(item, torch.Tensor) and stays(item, new) else None


class _Carried:
    """A place that the loop carries. first: its tensors before the first turn."""

    def __init__(self, place: Place) -> None:
        self.place = place
        new, self._form = pytree.tree_flatten(place.after)
        old = new if place.before is MISSING else pytree.tree_leaves(place.before)
        self._held = list(old)
        self._varies = [not is_same_leaf(x, y) or (place.before is MISSING and isinstance(x, torch.Tensor)) for x, y in zip(old, new, strict=True)]  # fmt: skip
        values = [x for x, varies in zip(old, self._varies, strict=True) if varies]
        self.first = [_zeros(x) if place.before is MISSING else _tensor(x) for x in values]

    def begin(self, fresh: Any) -> None:
        pairs = zip(self._varies, self._held, strict=True)
        self._fresh = [_as(x, next(fresh)) if varies else x for varies, x in pairs]
        missing = self.place.before is MISSING
        self.place.put(MISSING if missing else pytree.tree_unflatten(self._fresh, self._form))

    def last(self, loop: Turns, names: Mapping[str, Any]) -> list[torch.Tensor]:
        """Its tensors behind a turn."""
        p, own = self.place, self.place.holder is loop.names
        after = names.get(p.key, MISSING) if own else _entry(p)
        before = pytree.tree_unflatten(self._fresh, self._form)
        leaves, form = pytree.tree_flatten(after)
        if form != self._form:
            raise loop.mismatch(p.name, before, after)
        leaves = [_tensor(y) if v and number_type(y) else y for v, y in zip(self._varies, leaves, strict=True)]  # fmt: skip
        if not all(map(stays, self._fresh, leaves)):
            raise loop.mismatch(p.name, before, after)
        return [y for v, y in zip(self._varies, leaves, strict=True) if v]

    def end(self, found: Any) -> None:
        pairs = zip(self._varies, self._held, strict=True)
        values = [_as(x, next(found)) if varies else x for varies, x in pairs]
        self.place.put(pytree.tree_unflatten(values, self._form))


def _entry(place: Place) -> Any:
    held = place.holder
    return held.get(place.key, MISSING) if isinstance(held, dict) else held[place.key]


def _as(x: Any, value: torch.Tensor) -> torch.Tensor:
    """`value`, a number if `x` is one."""
    return as_number(value) if number_type(x) else value


def _zeros(x: Any) -> torch.Tensor:
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device) if isinstance(x, torch.Tensor) else _tensor(x)  # fmt: skip


def _tensor(x: Any) -> torch.Tensor:
    """A number as a tensor, in Python's type."""
    if isinstance(x, torch.Tensor):
        return x
    return torch.full((), x, dtype=number_type(x))
