"""Groups: which Computes share a stage (vertical fusion on the tile graph, after Welder and Souffle).

A Group is a list of steps; a step is an anchor with the Computes that follow it element by element. Its
`rows` are the axes that all its Computes have in common, so that a tile of rows is computed by one
task without any other task's results and without computing anything twice.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import MappingProxyType

from monotile.analysis.dependence import follows, is_axis, loads_of
from monotile.analysis.states import Waits
from monotile.ir.expr import loads
from monotile.ir.program import Compute, Loop, Scatter, Statement, defined, used

Row = tuple[tuple[str, int], ...]  # (tensor, position of the axis) for every Compute of the group


@dataclass(frozen=True)
class Group:
    """steps: of Computes, or one Scatter. rows: the axes that tasks may be cut along. waits: tensors that are made
    before, though not read: what is made of a state's old value before its memory gets the new one. streamed: the
    group is a softmax-weighted sum in one step, and joins no other."""

    steps: tuple[tuple[Compute | Scatter, ...], ...]
    rows: tuple[Row, ...]
    waits: frozenset[str] = frozenset()
    streamed: bool = False

    def statements(self) -> Iterator[Compute | Scatter]:
        for step in self.steps:
            yield from step

    @functools.cached_property
    def tensors(self) -> frozenset[str]:
        return frozenset(s.out.name for s in self.statements())

    @functools.cached_property
    def reads(self) -> frozenset[str]:
        """Tensors from outside."""
        read = frozenset(t.name for s in self.statements() for t in used(s))
        return (read | self.waits) - self.tensors


Node = Group | Loop
Allowed = Callable[[Group], bool]


def single(s: Compute | Scatter, waits: Waits = MappingProxyType({})) -> Group:
    rows = tuple(((s.out.name, p),) for p in range(len(s.axes)))
    return Group(((s,),), rows, waits.get(s.out.name, frozenset()))


def singles(body: Iterable[Statement], waits: Waits = MappingProxyType({})) -> list[Node]:
    out: list[Node] = []
    for s in body:
        match s:
            case Compute() | Scatter():
                out.append(single(s, waits))
            case Loop():
                out.append(s)
            case _:
                raise AssertionError("branches are refused before scheduling")
    return out


def writes_of(node: Node) -> frozenset[str]:
    return node.tensors if isinstance(node, Group) else frozenset(t.name for t in defined(node))


def reads_of(node: Node) -> frozenset[str]:
    return node.reads if isinstance(node, Group) else frozenset(t.name for t in used(node))


def fuse_epilogues(nodes: list[Node], allowed: Allowed = lambda _: True) -> list[Node]:
    """Every Compute that follows a group's last step element by element joins that step, if the group is allowed."""

    def join(first: Group, second: Group) -> Group | None:
        if len(second.steps) != 1 or len(second.steps[0]) != 1:
            return None
        last = second.steps[0][0]
        if not _follows(first, last):
            return None
        assert isinstance(last, Compute)
        rows = tuple((*row, (last.out.name, row[0][1])) for row in first.rows)
        both = Group(((*first.steps[0], last),), rows, first.waits | second.waits)
        return both if allowed(both) else None

    return merge(nodes, join)


def _follows(first: Group, s: Compute | Scatter) -> bool:
    """Whether `s` reads the single step of `first` only at its own element, and has its shape."""
    if len(first.steps) != 1 or not isinstance(s, Compute) or s.combiner is not None:
        return False
    anchor = first.steps[0][0]
    if not isinstance(anchor, Compute) or anchor.out.shape != s.out.shape:
        return False
    return follows(s, [x for x in loads(s.body) if x.tensor.name in first.tensors])


def unite(first: Group, second: Group) -> Group | None:
    """Both as one group, the rows being those that the two agree on; None if they do not meet."""
    crossing = [
        (s, x) for s in second.statements() for x in loads_of(s) if x.tensor.name in first.tensors
    ]
    if (
        first.streamed
        or second.streamed
        or not crossing
        or any(isinstance(s, Scatter) for s in (*first.statements(), *second.statements()))
    ):
        return None
    rows: list[Row] = []
    taken: set[int] = set()
    extents1, extents2 = _extents(first), _extents(second)  # a reader may have more: zeros around
    for row1 in first.rows:
        where1 = dict(row1)
        for number, row2 in enumerate(second.rows):
            where2 = dict(row2)
            if number in taken or extents1[row1[0]] != extents2[row2[0]]:
                continue
            if all(is_axis(x, where1[x.tensor.name], s, where2[s.out.name]) for s, x in crossing):
                taken.add(number)
                rows.append((*row1, *row2))
                break
    return Group((*first.steps, *second.steps), tuple(rows), first.waits | second.waits)


def _extents(group: Group) -> dict[tuple[str, int], int]:
    return {(s.out.name, p): a.extent for s in group.statements() for p, a in enumerate(s.axes)}


def merge(nodes: list[Node], join: Callable[[Group, Group], Group | None]) -> list[Node]:
    """Replace producer and consumer groups by `join` of them wherever it gives one and no cycle comes of it.

    The nodes are in a valid order and stay in one. Every consumer tries its latest producer first.
    """
    changed = True
    while changed:
        changed = False
        position = 0
        while position < len(nodes):
            second = nodes[position]
            if isinstance(second, Group):
                for earlier in range(position - 1, -1, -1):
                    first = nodes[earlier]
                    if not isinstance(first, Group) or not (first.tensors & second.reads):
                        continue
                    between = nodes[earlier + 1 : position]
                    after = _dependents(first, between)
                    if any(writes_of(n) & second.reads for n in after):
                        continue  # first -> n -> second: one stage cannot wait for itself
                    united = join(first, second)
                    if united is None:
                        continue
                    before = [n for n in between if n not in after]
                    nodes[earlier : position + 1] = [*before, united, *after]
                    position = earlier + len(before)
                    second = united
                    changed = True
                    break
                else:
                    position += 1
                    continue
                continue
            position += 1
    return nodes


def _dependents(first: Node, nodes: list[Node]) -> list[Node]:
    """Those of `nodes` (in order) that depend on `first`."""
    tainted = set(writes_of(first))
    out: list[Node] = []
    for n in nodes:
        if reads_of(n) & tainted:
            tainted |= writes_of(n)
            out.append(n)
    return out
