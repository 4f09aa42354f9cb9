"""Traversal and rewriting of a Plan's nodes: the only walk over nested bodies."""

from collections.abc import Callable, Iterator

import msgspec

from monotile.plan.nodes import Body, Choose, PlanNode, Repeat, Stage


def bodies_of(node: PlanNode) -> tuple[Body, ...]:
    """The bodies inside a node; () for a Stage."""
    match node:
        case Stage():
            return ()
        case Repeat(_, _, body):
            return (body,)
        case Choose(_, bodies):
            return bodies


def with_bodies(node: Repeat | Choose, change: Callable[[Body], Body]) -> Repeat | Choose:
    """`node` with each of its bodies changed."""
    match node:
        case Repeat(_, _, body):
            return msgspec.structs.replace(node, body=change(body))
        case Choose(_, bodies):
            return msgspec.structs.replace(node, bodies=tuple(map(change, bodies)))


def each_stage(body: Body, change: Callable[[Stage], Stage]) -> Body:
    """`body` with every stage replaced, also inside other nodes."""

    def inner(b: Body) -> Body:
        return each_stage(b, change)

    return tuple(change(n) if isinstance(n, Stage) else with_bodies(n, inner) for n in body)


def nodes_in(body: Body) -> Iterator[PlanNode]:
    """Every node, pre-order."""
    for node in body:
        yield node
        for inner in bodies_of(node):
            yield from nodes_in(inner)


def stages_in(body: Body) -> Iterator[Stage]:
    """Every stage, in order."""
    return (n for n in nodes_in(body) if isinstance(n, Stage))


def repeats(nodes: tuple[PlanNode, ...]) -> Iterator[Repeat]:
    """Every loop, pre-order."""
    return (n for n in nodes_in(nodes) if isinstance(n, Repeat))


def grid_waits(node: PlanNode) -> int:
    """The number of places in `node` itself where workers wait for each other."""
    return (node.handoff == "grid") + (isinstance(node, Repeat) and node.again == "grid")
