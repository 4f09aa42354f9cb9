"""In which order weights stream through the workers' rings: what comes after each step that streams some.

A step asks for the chunks of the next ones while it takes its own last ones, so that memory never rests at a hand-off. Nobody
knows what comes behind a loop that may end early, or behind a choice: nothing is asked for across these.
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
After = Callable[[int], Ahead]  # what comes next, so many steps at most


def streams(step: Step) -> bool:
    """Whether weights of the step come through the ring."""
    return step.method.slot_bytes > 0


def stream_order(body: Sequence[PlanNode]) -> dict[str, Ahead]:
    """For every step that streams, by its first compute: what streams after it."""
    found: dict[str, Ahead] = {}
    _visit(body, lambda _: (), found)
    return found


def _visit(nodes: Sequence[PlanNode], after: After, found: dict[str, Ahead]) -> None:
    for number, node in enumerate(nodes):
        rest = nodes[number + 1 :]

        def then(most: int, rest: Sequence[PlanNode] = rest) -> Ahead:
            return _first(rest, after, {}, most)

        match node:
            case Stage():
                own = [s for s in node.steps if streams(s)]
                for k, step in enumerate(own):
                    more = tuple(Streaming(node, s) for s in own[k + 1 :])[:MOST]
                    found[step.computes[0]] = more + then(MOST - len(more))
            case Repeat():
                _visit(node.body, _end_of(node, then), found)
            case Choose():
                for inner in node.bodies:
                    _visit(inner, lambda _: (), found)


def _end_of(loop: Repeat, then: After) -> After:
    if loop.ends_early:
        return lambda _: ()

    def end(most: int) -> Ahead:
        again = _first(loop.body, lambda _: (), {loop.axis: "next"}, most)
        last = then(most)
        return (Fork(loop.axis, loop.extent, again, last),) if most and (again or last) else ()

    return end


def _first(nodes: Sequence[PlanNode], after: After, shift: Shift, most: int) -> Ahead:
    """The first `most` steps of `nodes` and what comes after."""
    found: list[Streaming | Fork] = []
    for node in nodes:
        if len(found) >= most:
            return tuple(found[:most])
        if isinstance(node, Stage):
            found += [Streaming(node, s, MappingProxyType(dict(shift))) for s in node.steps if streams(s)]  # fmt: skip
        elif not any(streams(s) for stage in stages_in((node,)) for s in stage.steps):
            continue
        elif isinstance(node, Repeat) and not node.ends_early:
            inner: Shift = {**shift, node.axis: "first"}
            found += _first(node.body, lambda _: (), inner, most - len(found))
            return tuple(found[:most])
        else:
            return tuple(found[:most])
    return (*found[:most], *after(most - len(found[:most])))
