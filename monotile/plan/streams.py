"""In which order weights stream through the workers' rings: what comes after each step that streams some.

A worker asks for the chunks of the next steps while it waits for a hand-off of the grid, so that memory does not rest then. It
asks for nothing right before one: its arrival would wait for what is under way. Only up to the next such hand-off a step
asks for what comes after it. Nobody knows what comes behind a loop that may end early, or behind a choice: nothing is asked for
across these.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from monotile.plan.nodes import Choose, PlanNode, Repeat, Stage, Step
from monotile.plan.walk import stages_in

MOST = 3  # steps that one looks ahead
Shift = Mapping[str, Literal["first", "next"]]


@dataclass(frozen=True, slots=True)
class Streaming:
    """A step that streams weights, as an earlier one sees it. shift: by a loop's axis, whether it is its first iteration, or the next one;
    else the iteration is the same."""

    stage: Stage
    step: Step
    shift: Shift = field(default_factory=dict[str, Literal["first", "next"]])


@dataclass(frozen=True, slots=True)
class Fork:
    """What comes at the end of the loop over `axis`: of its next iteration, and behind its last one."""

    axis: str
    extent: int
    again: "Ahead"
    last: "Ahead"


Ahead = tuple[Streaming | Fork, ...]
After = Callable[
    [int, bool], Ahead
]  # what comes next, so many steps at most; whether up to a hand-off of the grid only


def streams(step: Step) -> bool:
    """Whether weights of the step come through the ring."""
    return step.method.slot_bytes > 0


@dataclass(frozen=True, slots=True)
class Order:
    """after: of every step that streams, by its first compute, what streams after it up to the next hand-off of the grid. before: of every stage that streams nothing, by its name,
    what streams after it, as it begins."""

    after: dict[str, Ahead] = field(default_factory=dict[str, Ahead])
    before: dict[str, Ahead] = field(default_factory=dict[str, Ahead])


def stream_order(body: Sequence[PlanNode]) -> Order:
    """In which order the steps of `body` stream."""
    found = Order()
    _visit(body, _nothing, found)
    return found


def _nothing(_most: int, _near: bool) -> Ahead:
    return ()


def _visit(nodes: Sequence[PlanNode], after: After, found: Order) -> None:
    for number, node in enumerate(nodes):
        rest = nodes[number + 1 :]

        def then(most: int, near: bool, rest: Sequence[PlanNode] = rest) -> Ahead:
            return _first(rest, after, {}, most, near=near)

        match node:
            case Stage():
                own = [s for s in node.steps if streams(s)]
                for k, step in enumerate(own):
                    more = tuple(Streaming(node, s) for s in own[k + 1 :])[:MOST]
                    found.after[step.computes[0]] = more + then(MOST - len(more), True)
                if not own:
                    found.before[node.name] = then(MOST, False)
            case Repeat():
                _visit(node.body, _end_of(node, then), found)
            case Choose():
                for inner in node.bodies:
                    _visit(inner, _nothing, found)


def _end_of(loop: Repeat, then: After) -> After:
    if loop.ends_early:
        return _nothing

    def end(most: int, near: bool) -> Ahead:
        again = _first(loop.body, _nothing, {loop.axis: "next"}, most, near=near)
        last = then(most, near)
        return (Fork(loop.axis, loop.extent, again, last),) if most and (again or last) else ()

    return end


def _first(
    nodes: Sequence[PlanNode], after: After, shift: Shift, most: int, *, near: bool
) -> Ahead:
    """The first `most` steps of `nodes` and what comes after. near: up to a hand-off of the grid."""
    found: list[Streaming | Fork] = []
    for node in nodes:
        if len(found) >= most:
            return tuple(found[:most])
        if near and (node.handoff == "grid"):
            return tuple(found[:most])
        if isinstance(node, Stage):
            found += [Streaming(node, s, MappingProxyType(dict(shift))) for s in node.steps if streams(s)]  # fmt: skip
        elif not any(streams(s) for stage in stages_in((node,)) for s in stage.steps):
            continue
        elif isinstance(node, Repeat) and not node.ends_early:
            inner: Shift = {**shift, node.axis: "first"}
            found += _first(node.body, _nothing, inner, most - len(found), near=near)
            return tuple(found[:most])
        else:
            return tuple(found[:most])
    return (*found[:most], *after(most - len(found[:most]), near))
