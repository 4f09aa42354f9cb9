"""A stable statement order that keeps repeated work together.

Tracing may leave slices of inputs anywhere, such as the initial states of ten layers all before the first layer. A slice with a single
consumer moves to just before it, and so does a tensor computed from a slice and scalars, such as states that begin at zero. Views of
layers' results for the caller may all come after the last layer; a view moves to just after its source. All other statements keep their
order.
"""

import heapq
from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Load, Tensor, loads
from monotile.ir.program import Compute, Statement, defined, used
from monotile.transform.replace import Moved, renamed, replace_all

WIDE_CONSUMERS = 3
WIDE_SPAN = 1 / 3  # fraction of the statement list
SHORTEST_LAYER = 4  # statements


def order(body: tuple[Statement, ...], results: tuple[Tensor, ...]) -> tuple[Statement, ...]:
    """`body` in that order. results: tensors used after it."""
    consumers: dict[str, set[int]] = {t.name: {-1} for t in results}
    for k, s in enumerate(body):
        for t in used(s):
            consumers.setdefault(t.name, set()).add(k)
    own: set[str] = set()
    movable: set[str] = set()
    fills = {s.out.name for s in body if isinstance(s, Compute) and _is_fill(s)}
    for s in body:
        if isinstance(s, Compute):
            users = consumers.get(s.out.name, {-1})
            if _is_source(s, own, fills) and len(users) == 1 and -1 not in users:
                movable.add(s.out.name)
            own.add(s.out.name)
    body = _views_early(body, {name for name, users in consumers.items() if users == {-1}})
    if not movable:
        return body
    waiting = {s.out.name: s for s in body if isinstance(s, Compute) and s.out.name in movable}
    out: list[Statement] = []

    def put(s: Statement) -> None:
        for t in used(s):
            if t.name in waiting:
                put(waiting.pop(t.name))
        out.append(s)

    for s in body:
        if not (isinstance(s, Compute) and s.out.name in movable):
            put(s)
    return body if tuple(out) == body else tuple(out)


def _views_early(body: tuple[Statement, ...], results: Container[str]) -> tuple[Statement, ...]:
    """`body` with views among `results` that nothing in it reads moved to just after their sources."""
    at = {t.name: k for k, s in enumerate(body) for t in defined(s)}
    after: dict[int, list[Statement]] = {}
    rest: list[tuple[int, Statement]] = []
    for k, s in enumerate(body):
        if isinstance(s, Compute) and s.out.name in results and isinstance(s.body, Load):
            sources = [at[t.name] for t in used(s) if t.name in at]
            if s.combiner is None and sources:
                after.setdefault(max(sources), []).append(s)
                continue
        rest.append((k, s))
    if not after:
        return body
    new = tuple(x for k, s in rest for x in (s, *after.get(k, ())))
    return body if new == body else new


def _is_source(s: Compute, own: Container[str], fills: Container[str]) -> bool:
    """Whether `s` is pointwise in one tensor, from outside of the list, and otherwise in scalars and constant `fills`."""
    read = {x.tensor for x in loads(s.body)}
    large = [t for t in read if t.shape and t.name not in fills]
    return s.combiner is None and len(large) == 1 and large[0].name not in own


def merge_fills(body: tuple[Statement, ...], results: tuple[Tensor, ...]) -> tuple[Statement, ...]:
    """`body` with equal constant fills merged at its start: every layer of a recurrent network then starts from the same
    zeros. results: tensors used after it, which are kept. Returns the same object if there are none."""
    fixed = {t.name for t in results}
    fills: dict[tuple[tuple[int, ...], DType, Expr], Compute] = {}
    moved: dict[str, Moved] = {}
    rest: list[Statement] = []
    for s in body:
        if isinstance(s, Compute) and _is_fill(s) and s.out.name not in fixed:
            shared = fills.setdefault((s.out.shape, s.out.dtype, s.body), s)
            if shared is not s:
                moved[s.out.name] = renamed(shared.out)
        else:
            rest.append(s)
    new = (*fills.values(), *replace_all(rest, moved))
    return body if new == body else new


def _is_fill(s: Compute) -> bool:
    return s.combiner is None and not loads(s.body)


def hoist(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """`body` with widely read statements first: values that the first layer computes for all layers, such as a mask or a
    position bias, move before it, so that it equals the other layers. Returns the same object if nothing moves.
    """
    at = {t.name: k for k, s in enumerate(body) for t in defined(s)}
    consumers: dict[int, set[int]] = {}
    for k, s in enumerate(body):
        for t in used(s):
            if t.name in at:
                consumers.setdefault(at[t.name], set()).add(k)
    placed: dict[int, None] = {}  # in order
    for k in sorted(consumers):
        # One by one, each with its dependences: one may depend on layers that read another.
        if _is_wide(k, sorted(consumers[k]), len(body)):
            placed |= dict.fromkeys(sorted(_needs(k, body, at, placed)))
    rest = [k for k in range(len(body)) if k not in placed]
    new = tuple(body[k] for k in (*placed, *rest))
    return body if new == body else new


def _is_wide(k: int, users: Sequence[int], length: int) -> bool:
    """Whether the statements at `users` read statement `k` from far away, or at equal distances, once per layer."""
    gaps = {b - a for a, b in pairwise(users)}
    return len(users) >= WIDE_CONSUMERS and (
        users[-1] - k > WIDE_SPAN * length or (len(gaps) == 1 and min(gaps) >= SHORTEST_LAYER)
    )


def _needs(
    k: int, body: Sequence[Statement], at: Mapping[str, int], but: Container[int]
) -> set[int]:
    """`k` and the statements that it depends on, except those in `but`."""
    found: set[int] = set()
    wanted = [k]
    while wanted:
        n = wanted.pop()
        if n not in found and n not in but:
            found.add(n)
            wanted += [at[t.name] for t in used(body[n]) if t.name in at]
    return found


def depths(body: Sequence[Statement]) -> list[int]:
    """The depth of each statement: the longest chain of statements of the list before it."""
    depth: dict[str, int] = {}
    out: list[int] = []
    for s in body:
        d = 1 + max((depth.get(t.name, 0) for t in used(s)), default=0)
        out.append(d)
        depth |= {t.name: d for t in defined(s)}
    return out


def topological(
    items: Sequence[Statement], waits: Mapping[str, frozenset[str]] = MappingProxyType({})
) -> tuple[Statement, ...]:
    """`items` in a topological order, otherwise stable.

    waits: by tensor name of a statement, further tensors that must be defined before it.
    """
    at = {t.name: k for k, s in enumerate(items) for t in defined(s)}

    def before(s: Statement) -> set[str]:
        names = {t.name for t in used(s)}
        return names.union(*(waits.get(t.name, ()) for t in defined(s)))

    needs = [{at[name] for name in before(s) if name in at} for s in items]
    users: list[list[int]] = [[] for _ in items]
    for k, need in enumerate(needs):
        for n in need:
            users[n].append(k)
    left = [len(need) for need in needs]
    ready = [k for k, n in enumerate(left) if n == 0]
    heapq.heapify(ready)
    out: list[Statement] = []
    while ready:
        k = heapq.heappop(ready)
        out.append(items[k])
        for user in users[k]:
            left[user] -= 1
            if left[user] == 0:
                heapq.heappush(ready, user)
    assert len(out) == len(items), "statements that wait for each other"
    return tuple(out)
