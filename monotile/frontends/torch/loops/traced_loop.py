"""Traces the body of a `for` loop with a dynamic number of iterations once, between markers (`branches/markers.py`).

    for t in range(x.shape[1]):         loop = TracedLoop(call_in_head(range, x.shape[1]), ...)
        h = self.cell(x[:, t], h)       with loop:
        outs.append(h)                      while loop.more(locals()):
    return torch.stack(outs, 1)                 h, outs = loop.names["h"], loop.names["outs"]     (in short)
                                                t = loop.item
                                                h = self.cell(x[:, t], h)
                                                outs.append(h)
                                        h, outs = loop.names["h"], loop.names["outs"]
                                        return torch.stack(outs, 1)

Python runs the body several times. The first is a trial run, outside of the graph: it shows what the body changes (`carried.py`), and its changes are
undone. If a value changes its type in it (`h = None` before the loop), the first iteration is peeled: traced by itself. The last run is the one that
is traced for all other iterations: changed values are carried, and lists that the body appends to become `Stacked` lists.
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
from monotile.frontends.torch.branches.markers import loop_begin, loop_end
from monotile.frontends.torch.branches.selection import MISSING
from monotile.frontends.torch.loops.carried import (
    ListGrowth,
    Place,
    Snapshot,
    describe_type,
    is_same_leaf,
    keeps_type,
)
from monotile.frontends.torch.loops.detection import LoopDetectedError
from monotile.frontends.torch.loops.long_loops import Head, is_long
from monotile.frontends.torch.loops.stacked import (
    Growing,
    Run,
    Stacked,
    interleaved,
    loop_items,
    lower_bound,
    range_items,
    reversed_run,
)
from monotile.frontends.torch.loops.stacked import call_in_head as call_in_head
from monotile.frontends.torch.loops.tensor_numbers import (
    IndexRange,
    number_tensor,
    number_type,
    stands_for_number,
)
from monotile.frontends.torch.loops.tensor_numbers import number as as_number
from monotile.frontends.torch.origin import describe_frame, is_users, users_frame

_HOW = "begin with a tensor of the shape and type that it has after an iteration, and collect what grows in a list (torch.stack after the loop)"
Iterations = Generator[None, Mapping[str, Any], None]


@dataclass
class KnownLoops:
    """Loops with a fixed number of iterations. unrolled: the lines of those that are traced iteration by iteration. once: whether one is traced once.
    long: the long loops that were found (`long_loops.py`)."""

    unrolled: set[str] = field(default_factory=set[str])
    once: bool = False
    long: set[Head] = field(default_factory=set[Head])


@contextmanager
def loops_traced_once() -> Generator[KnownLoops]:
    """Within, long loops are traced once (`long_loops.py`)."""
    with patch.object(TracedLoop, "known", KnownLoops()) as known:
        yield known


class TracedLoop:
    """One execution of a loop. undecided: whether it is traced once. names: the values of its names before an iteration, and after the loop.
    item: the value of its target. open: whether it is running."""

    # The lines of loops whose first iteration is peeled because their body fails without it.
    peeled: ClassVar[set[str]] = set()
    # Loops with a fixed number of iterations; None where all of them are traced iteration by iteration.
    known: ClassVar[KnownLoops | None] = None

    def __init__(self, items: Any, names: Sequence[str], first: Iterable[str]) -> None:
        """names: those that it reads or defines; first: those that an iteration may read before it binds them."""
        self.where = describe_frame(users_frame(sys._getframe(1)))  # pyright: ignore[reportPrivateUsage]
        self._items = loop_items(items)
        self._has_fixed_count = self._items is None and self.known is not None and self.where not in self.known.unrolled and is_long(items)  # fmt: skip
        if self._has_fixed_count and self.known is not None:
            self._items, self.known.once = range_items(items), True
        self.undecided = self._items is not None
        self._plain = iter(()) if self.undecided else iter(items)
        self._listed, self._first = names, frozenset(first)
        self.names: dict[str, Any] = {}
        self.item: Any = None
        self.open = False
        self._iterations: Iterations | None = None
        self._trial_stack = ExitStack()
        self._in_first_trial = False

    def __enter__(self) -> None:
        self.open = self.undecided

    def __exit__(self, error_type: Any, error: BaseException | None, *_: object) -> None:
        self._trial_stack.close()
        fails = isinstance(error, Exception) and not isinstance(error, CaptureError)
        if fails and self._in_first_trial and self._may_peel():
            self.peeled.add(self.where)
            raise LoopDetectedError from error
        if self._has_fixed_count and self.known and ((self.open and error_type is None) or isinstance(error, Exception)):  # fmt: skip
            self.known.unrolled.add(self.where)
            raise LoopDetectedError from error
        if self.open and error_type is None:
            raise self.refusal("it is left by a break or return: run all iterations, and select the result (torch.where)")  # fmt: skip
        self.open = False

    def more(self, names: Mapping[str, Any]) -> bool:
        """Whether the body runs once more. names: the function's local names and their values."""
        if not self.undecided:
            self.item = next(self._plain, MISSING)
            return self.item is not MISSING
        try:
            if self._iterations is None:
                self.names |= {n: names.get(n, MISSING) for n in self._listed}
                self._iterations = self._run()
                next(self._iterations)
            else:
                self._iterations.send(names)
        except StopIteration:
            self.open = False
        return self.open

    def _run(self) -> Iterations:
        items = self._items
        assert items is not None
        peeled = 0
        places, growths = list[Place](), list[ListGrowth]()
        if self.where not in self.peeled:
            self._in_first_trial = True
            places, growths = yield from self._trial()
            self._in_first_trial = False
        if self.where in self.peeled or any(map(self._needs_peeling, places)):
            if not self._runs_at_least_once():
                self._refuse_type_changes(places, "which may have no iterations")
            self.item = items.at(0)
            names = yield
            self.names |= {n: names.get(n, MISSING) for n in self._listed}
            peeled = 1
            places, growths = yield from self._trial()
        self._refuse_type_changes(places)
        self._refuse_numbers(places, peeled)
        yield from self._trace_body(peeled, places, growths)

    def _may_peel(self) -> bool:
        """Whether the first iteration can be peeled and is not yet."""
        return self.where not in self.peeled and self._runs_at_least_once()

    def _runs_at_least_once(self) -> bool:
        """Whether the loop has a first iteration in each call."""
        assert self._items is not None
        return lower_bound(self._items.count) > 0

    def _remaining(self, peeled: int) -> Any:
        """The number of iterations without the first `peeled`."""
        assert self._items is not None
        return self._items.count - peeled

    def _condition(self) -> list[torch.Tensor]:
        """The condition for another iteration of a `while` loop."""
        return []

    def _trial(self) -> Generator[None, Mapping[str, Any], tuple[list[Place], list[ListGrowth]]]:
        """A trial run of the body, outside of the graph. Returns what it changes."""
        assert self._items is not None
        snapshot = Snapshot(self.names)
        if snapshot.has_iterator():
            raise self.refusal(
                "it reads an object that holds an iterator, of which each iteration would take items: index a list"
            )
        with self._trial_stack:
            self._trial_stack.enter_context(disable_proxy_modes_tracing())
            self.item = self._item(torch.empty((), dtype=torch.int64), 0)
            names = yield
        found = self._changed(snapshot, names)
        snapshot.restore()
        return found

    def _item(self, iteration: torch.Tensor, peeled: int) -> Any:
        """The value of the target. peeled: the number of peeled iterations."""
        assert self._items is not None
        place = as_number(iteration, IndexRange(0, self._items.count - 1 - peeled, object()))
        return self._items.at(place + peeled if peeled else place)

    def _changed(
        self, snapshot: Snapshot, names: Mapping[str, Any]
    ) -> tuple[list[Place], list[ListGrowth]]:
        try:
            return snapshot.changed(names)
        except KeyError:
            raise self.refusal("its body removes items of a list, dictionary or set: keep a fixed number of tensors, or leave the size out of dynamic_shapes") from None  # fmt: skip

    def _needs_peeling(self, place: Place) -> bool:
        """Whether a place has another type before the first iteration than before the others."""
        if place.before is MISSING:
            return place.holder is not self.names or place.key in self._first
        (old, form), (new, other) = map(pytree.tree_flatten, (place.before, place.after))
        return form != other or not all(map(_is_invariant, old, new))

    def _refuse_type_changes(self, places: Sequence[Place], also: str = "") -> None:
        for place in places:
            if place.before is MISSING and not (also and self._needs_peeling(place)):
                continue
            (old, form), (new, other) = map(pytree.tree_flatten, (place.before, place.after))
            if form != other or not all(map(keeps_type, old, new)):
                raise self.mismatch(place.name, place.before, place.after, also)

    def _refuse_numbers(self, places: Sequence[Place], peeled: int) -> None:
        """Refuses places that each iteration adds and, in loops with a fixed number of iterations, numbers: they would become tensors."""
        for place in places:
            if peeled and place.before is MISSING and place.holder is not self.names:
                raise self.refusal(f"an iteration adds {place.name}, and the next would add another: collect what grows in a list")  # fmt: skip
            old, new = (pytree.tree_leaves(x) for x in (place.before, place.after))
            counts = place.before is not MISSING and not all(map(is_same_leaf, old, new)) and any(map(number_type, new))  # fmt: skip
            if self._has_fixed_count and (counts or any(map(stands_for_number, new))):
                raise self.refusal(f"{place.name} is a number")

    def mismatch(self, name: str, before: Any, after: Any, also: str = "") -> CaptureError:
        return self.refusal(
            f"{name} is {describe_type(before)} before an iteration{f' of the loop, {also},' if also else ''} and {describe_type(after)} after it: {_HOW}"
        )

    def refusal(self, text: str) -> CaptureError:
        return CaptureError(
            f"at {self.where}: the number of iterations of this loop depends on a size of dynamic_shapes, and {text}"
        )

    def _trace_body(
        self, peeled: int, places: Sequence[Place], growths: Sequence[ListGrowth]
    ) -> Iterations:
        """The run of the body that is traced for all iterations but the first `peeled`."""
        assert self._items is not None
        carried = [_Carried(p) for p in places]
        count = self._remaining(peeled)
        last_items = [_last(g) for g in growths]
        firsts = [x for c in carried for x in c.first]
        kept = [*firsts, *(x for x in last_items if x is not None)]
        iteration, *given = loop_begin(count, [*kept, *self._condition()])
        fresh = iter(given)
        for c in carried:
            c.begin(fresh)
        for g, last in zip(growths, last_items, strict=True):
            length = Stacked(g.before).length + as_number(iteration) * len(g.new)
            made = Growing(g.before, None if last is None else next(fresh), length)
            if not g.places or self._is_callers(g.whole):
                raise self.refusal("its body appends to a list that is not the function's own: append to a new list, and return it")  # fmt: skip
            for place in g.places:
                place.put(made)
        snapshot = Snapshot(self.names)
        self.item = self._item(iteration, peeled)
        names = yield
        self._check(snapshot, names, carried)
        kept = [x for c in carried for x in c.last(self, names)]
        lists = [self._now(g, names) for g in growths]
        kept += [x.last for x, last in zip(lists, last_items, strict=True) if last is not None]
        each, form = pytree.tree_flatten([(x.front, x.new) for x in lists])
        each_iteration = [x for x in each if isinstance(x, torch.Tensor)]
        found = iter(loop_end(count, [*kept, *self._condition()], each_iteration))
        self.names |= {n: names.get(n, MISSING) for n in self._listed}
        for c in carried:
            c.end(found)
        for _ in filter(lambda last: last is not None, last_items):
            next(found)
        values = [next(found) if isinstance(x, torch.Tensor) else x for x in each]
        for g, (front, new) in zip(growths, pytree.tree_unflatten(values, form), strict=True):
            ahead = [reversed_run(interleaved(front[::-1], count))] if front else []
            behind = [interleaved(new, count)] if new else []
            made = Stacked([*ahead, *g.before, *behind])
            for place in g.places:
                place.put(made)
            g.whole.clear()  # it has no stale contents under another name
            g.whole.extend(made.parts())

    def _is_callers(self, x: list[Any]) -> bool:
        """Whether a caller of the loop's function has a name for `x`: it would keep the list from before the loop."""
        frame = users_frame(sys._getframe(1)).f_back  # pyright: ignore[reportPrivateUsage]
        while frame is not None:
            if is_users(frame.f_code.co_filename) and any(y is x for y in frame.f_locals.values()):
                return True
            frame = frame.f_back
        return False

    def _now(self, growth: ListGrowth, names: Mapping[str, Any]) -> Growing:
        place = growth.places[0]
        own = place.holder is self.names
        value = names.get(place.key) if own else place.holder[place.key]
        if not isinstance(value, Growing):
            raise self.mismatch(place.name, place.before, value)
        return value

    def _check(
        self, snapshot: Snapshot, names: Mapping[str, Any], carried: Sequence["_Carried"]
    ) -> None:
        """Refuses places that the traced run changes and the trial run did not."""
        known = {c.place.at for c in carried}
        places, growths = self._changed(snapshot, names)
        for place in places:
            if place.at not in known and not isinstance(place.before, Growing):
                raise self.mismatch(place.name, place.before, place.after)
        if growths:
            raise self.refusal("its body appends to a list in some iterations only")


def _is_invariant(x: Any, y: Any) -> bool:
    """As `keeps_type`, except that a bool must not change: one that only the first iteration changes is a constant after it."""
    return keeps_type(x, y) and (is_same_leaf(x, y) or not isinstance(x, bool))


def _last(growth: ListGrowth) -> torch.Tensor | None:
    """The last item of a list before the loop, if the last item that an iteration appends has the same type."""
    if not growth.before or not growth.new:
        return None
    item, new = growth.before[-1], growth.new[-1]
    item = item.value[-1] if isinstance(item, Run) and isinstance(item.value, torch.Tensor) else item  # fmt: skip
    return item if isinstance(item, torch.Tensor) and keeps_type(item, new) else None


class _Carried:
    """A place that the loop carries. first: its tensors before the first iteration."""

    def __init__(self, place: Place) -> None:
        self.place = place
        new, self._form = pytree.tree_flatten(place.after)
        old = new if place.before is MISSING else pytree.tree_leaves(place.before)
        self._held = list(old)
        self._varies = [not is_same_leaf(x, y) or (place.before is MISSING and isinstance(x, torch.Tensor)) for x, y in zip(old, new, strict=True)]  # fmt: skip
        values = [x for x, varies in zip(old, self._varies, strict=True) if varies]
        self.first = [_zeros(x) if place.before is MISSING else number_tensor(x) for x in values]

    def begin(self, fresh: Any) -> None:
        pairs = zip(self._varies, self._held, strict=True)
        self._fresh = [_as(x, next(fresh)) if varies else x for varies, x in pairs]
        missing = self.place.before is MISSING
        self.place.put(MISSING if missing else pytree.tree_unflatten(self._fresh, self._form))

    def last(self, loop: TracedLoop, names: Mapping[str, Any]) -> list[torch.Tensor]:
        """Its tensors after an iteration."""
        p, own = self.place, self.place.holder is loop.names
        after = names.get(p.key, MISSING) if own else _entry(p)
        before = pytree.tree_unflatten(self._fresh, self._form)
        leaves, form = pytree.tree_flatten(after)
        if form != self._form:
            raise loop.mismatch(p.name, before, after)
        leaves = [number_tensor(y) if v and number_type(y) else y for v, y in zip(self._varies, leaves, strict=True)]  # fmt: skip
        if not all(map(keeps_type, self._fresh, leaves)):
            raise loop.mismatch(p.name, before, after)
        return [y for v, y in zip(self._varies, leaves, strict=True) if v]

    def end(self, found: Any) -> None:
        pairs = zip(self._varies, self._held, strict=True)
        values = [_as(x, next(found)) if varies else x for varies, x in pairs]
        self.place.put(pytree.tree_unflatten(values, self._form))


def _entry(place: Place) -> Any:
    holder = place.holder
    return holder.get(place.key, MISSING) if isinstance(holder, dict) else holder[place.key]


def _as(x: Any, value: torch.Tensor) -> torch.Tensor:
    """`value`, a number if `x` is one."""
    return as_number(value) if number_type(x) else value


def _zeros(x: Any) -> torch.Tensor:
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device) if isinstance(x, torch.Tensor) else number_tensor(x)  # fmt: skip
