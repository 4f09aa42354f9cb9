"""A stable order that keeps repeated work together.

A part of an input may stand anywhere, and tracing leaves it anywhere: the states that ten layers start
from in one heap before the first of them. Such a statement goes to just before its
consumer if it has one alone; all others stay in their order.
"""

import heapq
from collections.abc import Sequence

from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Load, Tensor, loads
from monotile.ir.program import Compute, Statement, defined, used
from monotile.transform.replace import Moved, renamed, replace_all

WIDE_CONSUMERS = 3
WIDE_SPAN = 1 / 3  # of the statement list


def order(body: tuple[Statement, ...], results: tuple[Tensor, ...]) -> tuple[Statement, ...]:
    """`body` in that order. results: tensors that are used after it."""
    consumers: dict[str, set[int]] = {t.name: {-1} for t in results}
    for k, s in enumerate(body):
        for t in used(s):
            consumers.setdefault(t.name, set()).add(k)
    own: set[str] = set()
    movable: set[str] = set()
    for s in body:
        if isinstance(s, Compute):
            users = consumers.get(s.out.name, {-1})
            if _is_source(s, own) and len(users) == 1 and -1 not in users:
                movable.add(s.out.name)
            own.add(s.out.name)
    if not movable:
        return body
    waiting = {s.out.name: s for s in body if isinstance(s, Compute) and s.out.name in movable}
    out: list[Statement] = []
    for s in body:
        if not (isinstance(s, Compute) and s.out.name in movable):
            out += [waiting.pop(t.name) for t in used(s) if t.name in waiting]
            out.append(s)
    return body if tuple(out) == body else tuple(out)


def _is_source(s: Compute, own: set[str]) -> bool:
    """Whether `s` is a part of one tensor from outside of the list."""
    if s.combiner is not None or not isinstance(s.body, Load):
        return False
    return len(loads(s.body)) == 1 and s.body.tensor.name not in own


def share_fills(body: tuple[Statement, ...], results: tuple[Tensor, ...]) -> tuple[Statement, ...]:
    """`body` with arrays filled alike made once, at its start: every layer of a recurrent network then
    starts from the same zeros. results: tensors that are used after it, which stay. The same object where there
    are no such arrays."""
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
    """`body` with what is read far and wide first: what the first of many layers makes for all of them,
    such as a mask or the bias of positions, stands before it, so that it is a layer like the others.
    The same object where the order is so already.
    """
    at = {t.name: k for k, s in enumerate(body) for t in defined(s)}
    consumers: dict[int, set[int]] = {}
    for k, s in enumerate(body):
        for t in used(s):
            if t.name in at:
                consumers.setdefault(at[t.name], set()).add(k)
    wanted = [
        k
        for k, users in consumers.items()
        if len(users) >= WIDE_CONSUMERS and max(users) - k > WIDE_SPAN * len(body)
    ]
    first: set[int] = set()
    while wanted:
        k = wanted.pop()
        if k not in first:
            first.add(k)
            wanted += [at[t.name] for t in used(body[k]) if t.name in at]
    if all(k in first for k in range(len(first))):
        return body
    rest = [s for k, s in enumerate(body) if k not in first]
    return (*(body[k] for k in sorted(first)), *rest)


def topological(items: Sequence[Statement]) -> tuple[Statement, ...]:
    """`items` with every statement after what it reads, otherwise as they stand."""
    at = {t.name: k for k, s in enumerate(items) for t in defined(s)}
    needs = [{at[t.name] for t in used(s) if t.name in at} for s in items]
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
    return tuple(out)
