"""Groups: which Computes share a stage (vertical fusion on the tile graph, after Welder and Souffle).

A Group is a list of steps. A step is an anchor and the element-wise Computes that follow it, its epilogue. The group's `rows` are the
axes that all its Computes have in common. One task computes a tile of rows without the results of other tasks, and nothing is computed
twice. A Compute may have some leading rows that no other Compute has (a wavefront's starting values): its `lead`.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType

from monotile.analysis.affine import Affine, affine
from monotile.analysis.dependence import apart, follows, is_axis, loads_of, updates_own
from monotile.analysis.states import Waits
from monotile.ir.expr import Axis, Expr, Load, loads
from monotile.ir.program import Branch, Compute, Loop, Scatter, Statement, defined, ends_of, used
from monotile.kernels.group import Group, Row, single
from monotile.transform.predicates import joins

Node = Group | Loop | Branch
Allowed = Callable[[Group], bool]
Join = Callable[[Group, Group], Group | None]


def singles(body: Iterable[Statement], waits: Waits = MappingProxyType({})) -> list[Node]:
    out: list[Node] = []
    for s in body:
        match s:
            case Compute() | Scatter():
                out.append(single(s, waits))
            case Loop() | Branch():
                out.append(s)
    return out


def writes_of(node: Node) -> frozenset[str]:
    return node.tensors if isinstance(node, Group) else _writes_inside(node)


@functools.lru_cache(maxsize=1024)
def _writes_inside(s: Loop | Branch) -> frozenset[str]:
    return frozenset(t.name for t in defined(s))


def needs_of(node: Node, waits: Waits) -> frozenset[str]:
    """The names of tensors that must exist before `s` runs: those that it reads, and those computed from the old values that it
    overwrites."""
    if not waits:
        return reads_of(node)
    return reads_of(node).union(*(waits[n] for n in waits.keys() & writes_of(node)))


def reads_of(node: Node) -> frozenset[str]:
    return node.reads if isinstance(node, Group) else _reads_inside(node)


@functools.lru_cache(maxsize=1024)
def _reads_inside(s: Loop | Branch) -> frozenset[str]:
    return frozenset(t.name for t in used(s))


def with_epilogue(first: Group, second: Group) -> Group | None:
    """`first` with the element-wise `second` added to its last step as an epilogue; None if `second` does not qualify."""
    if len(second.steps) != 1 or len(second.steps[0]) != 1:
        return None
    last = second.steps[0][0]
    if not _follows(first, last):
        return None
    rows = tuple((*row, (last.out.name, *row[0][1:])) for row in first.rows)
    return Group(((*first.steps[0], last),), rows, first.waits | second.waits)


def fuse_epilogues(
    nodes: list[Node],
    allowed: Allowed = lambda _: True,
    waits: Waits = MappingProxyType({}),
    together: Join = with_epilogue,
) -> list[Node]:
    """Joins element-wise Computes to the last step of their producer's group, where the group allows it. together: `with_epilogue`, or a
    memoised form of it."""

    def join(first: Group, second: Group) -> Group | None:
        both = together(first, second)
        return both if both is not None and allowed(both) else None

    return merge(nodes, join, waits)


def _follows(first: Group, s: Compute | Scatter) -> bool:
    """Whether `s` reads only its own element of the single step of `first`, and has its shape."""
    anchor = first.steps[0][0]
    if len(first.steps) != 1 or not isinstance(anchor, Compute):
        return False
    if isinstance(s, Scatter):
        return joins(s, anchor, first.tensors)
    if s.combiner is not None or anchor.out.shape != s.out.shape:
        return False
    return follows(s, [x for x in loads(s.body) if x.tensor.name in first.tensors])


def unite(first: Group, second: Group, *, leads: bool = False) -> Group | None:
    """Both groups as one, with the rows that the two share; None if they have no rows in common.

    leads: whether element-wise steps may have leading rows of their own.
    """
    crossing = [
        (s, x) for s in second.statements() for x in loads_of(s) if x.tensor.name in first.tensors
    ]
    if (
        first.matched
        or second.matched
        or not crossing
        or any(
            t.name in first.tensors
            for s in second.statements()
            if isinstance(s, Compute)
            for t in ends_of(s)
        )
        or not _writes_apart((*first.statements(), *second.statements()))
    ):
        return None
    rows: list[Row] = []
    taken: set[int] = set()
    for row1 in first.rows:
        for number, row2 in enumerate(second.rows):
            met = None if number in taken else _meet(row1, row2, crossing, second, leads=leads)
            if met is not None and _length(first, row1) == _length(second, met):
                taken.add(number)
                rows.append((*row1, *met))
                break
    return Group((*first.steps, *second.steps), tuple(rows), first.waits | second.waits)


def _writes_apart(every: Sequence[Compute | Scatter]) -> bool:
    """Whether the Scatters among `every` can be steps of one stage: each writes its own elements, in memory of which other statements
    use none, or just the element that gets the new value made of it."""
    scatters = [s for s in every if isinstance(s, Scatter)]
    uses = [(s, t.name) for s in every for t in used(s)] if scatters else []
    made = {s.out.name for s in every}
    return all(
        len(apart(s)) == len(s.axes)
        and s.base.name not in made
        and all(name != s.out.name for _, name in uses)
        and all(t is s or updates_own(t, s) for t, name in uses if name == s.base.name)
        for s in scatters
    )


def _meet(
    row1: Row,
    row2: Row,
    crossing: list[tuple[Compute | Scatter, Load]],
    second: Group,
    *,
    leads: bool,
) -> Row | None:
    """`row2` with the leads with which a task that has a part of `row1` reads only that part; None if there are none."""
    where1, where2 = ({name: (p, lead) for name, p, lead in row} for row in (row1, row2))
    more: set[int | None] = set()
    for s, x in crossing:
        (p, lead), (q, own) = where1[x.tensor.name], where2[s.out.name]
        ahead = 0 if is_axis(x, p, s, q) else _ahead(x.index[p], s.axes[q])
        more.add(None if ahead is None else lead - ahead - own)
    if len(more) != 1 or (by := more.pop()) is None:
        return None
    met = tuple((name, p, lead + by) for name, p, lead in row2)
    plain = {s.out.name for s in second.statements() if isinstance(s, Compute) and not s.reduce}
    if any(lead < 0 or (lead and not (leads and name in plain)) for name, _, lead in met):
        return None
    return met


def _ahead(index: Expr, axis: Axis) -> int | None:
    """k if `index` is `axis` + k, else None."""
    rest = affine(index) + Affine(((axis, -1),))
    return None if rest.terms else rest.constant


def _length(group: Group, row: Row) -> int | None:
    """How many rows all Computes of a group share. None where they differ, which a reader that pads with zeros may do."""
    axes = {s.out.name: s.axes for s in group.statements()}
    found = {axes[name][p].extent - lead for name, p, lead in row}
    return found.pop() if len(found) == 1 else None


class _Item:
    """A node of `merge` with the tensors that it reads and writes and the nodes that it depends on. at: its position."""

    __slots__ = ("at", "needs", "node", "reads", "writes")

    def __init__(self, node: Node, waits: Waits) -> None:
        self.node, self.reads, self.writes = node, reads_of(node), writes_of(node)
        self.needs = needs_of(node, waits)
        self.at = 0


class _Joining:
    """`join`, memoised for pairs that cannot be joined."""

    def __init__(self, join: Join, waits: Waits) -> None:
        self._join, self._waits = join, waits
        self._apart: set[tuple[_Item, _Item]] = set()

    def item(self, node: Node) -> _Item:
        return _Item(node, self._waits)

    def joined(self, first: _Item, second: _Item) -> _Item | None:
        if not isinstance(first.node, Group) or not isinstance(second.node, Group):
            return None
        both = self._join(first.node, second.node)
        if both is None:
            self._apart.add((first, second))
        return None if both is None else self.item(both)

    def may(self, first: _Item, second: _Item) -> bool:
        return isinstance(first.node, Group) and (first, second) not in self._apart


def merge(
    nodes: Iterable[Node],
    join: Join,
    waits: Waits = MappingProxyType({}),
) -> list[Node]:
    """`nodes` with pairs of producer and consumer groups replaced by their `join` wherever it gives a group and creates no cycle.

    The order is valid before and after. Every consumer tries its latest producer first. `join` is a pure function.
    """
    joining = _Joining(join, waits)
    items = [joining.item(n) for n in nodes]
    writers = {name: x for x in items for name in x.writes}
    _number(items, 0)
    changed = True
    while changed:
        changed = False
        position = 0
        while position < len(items):
            joined = _joined(items, position, writers, joining)
            changed = changed or joined is not None
            position = position + 1 if joined is None else joined
    return [x.node for x in items]


def _number(items: list[_Item], first: int) -> None:
    """Updates the positions of the items from `first` on."""
    for at in range(first, len(items)):
        items[at].at = at


def _joined(
    items: list[_Item], position: int, writers: dict[str, _Item], joining: _Joining
) -> int | None:
    """Joins the item at `position` with one before it. Gives the position of the result, or None if none was joined. writers: maps a
    tensor to the item that computes it."""
    second = items[position]
    if not isinstance(second.node, Group):
        return None
    producers = {writers[name] for name in second.reads & writers.keys()}
    for first in sorted(producers, key=lambda x: x.at, reverse=True):
        if not joining.may(first, second):
            continue
        earlier = first.at
        between = items[earlier + 1 : position]
        after = _dependents(first, between)
        if not all(x.writes.isdisjoint(second.reads) for x in after):
            continue  # first -> x -> second: one stage cannot wait for itself
        united = joining.joined(first, second)
        if united is not None:
            before = [x for x in between if x not in after]
            items[earlier : position + 1] = [*before, united, *after]
            _number(items, earlier)
            writers.update(dict.fromkeys(united.writes, united))
            return earlier + len(before)
    return None


def _dependents(first: _Item, items: list[_Item]) -> list[_Item]:
    """Those of `items`, which are in order, that depend on `first`."""
    tainted = set(first.writes)
    out: list[_Item] = []
    for x in items:
        if not tainted.isdisjoint(x.needs):
            tainted |= x.writes
            out.append(x)
    return out
