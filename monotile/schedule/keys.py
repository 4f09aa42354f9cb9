"""Keys that identify the scheduler's choices and their alternatives, without tensor names (`choice.spec.Key`)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from monotile.choice.digest import Structure, digest
from monotile.choice.spec import Value
from monotile.ir.program import Loop
from monotile.kernels.draft import Context, Draft
from monotile.kernels.group import Group
from monotile.plan.nodes import Stage, Step


def digest_groups(context: Context, *groups: Group, more: object = None) -> str:
    """Digest of groups that one choice is about. more: further values that the choice depends on."""
    found = Structure(context.tables)
    for g in groups:
        for step in g.steps:
            found.tokens.append("step")
            found.add(step)
    rows = [[[(found.numbers[n], p, lead) for n, p, lead in row] for row in g.rows] for g in groups]
    matched = [type(g.match).__name__ for g in groups]
    return digest(found.tokens, rows, matched, more)


def digest_stages(context: Context, loop: Loop, stages: tuple[Stage, ...]) -> str:
    """Digest of a loop that is cut into stages."""
    found = Structure(context.tables)
    found.add((loop,))
    cut = [(s.grid, [step_value(step, found.numbers) for step in s.steps]) for s in stages]
    return digest(found.tokens, cut)


def draft_value(draft: Draft) -> Value:
    """How a group is cut: a value that distinguishes a Draft from all others of its group."""
    numbers = {s.out.name: n for n, s in enumerate(draft.group.statements())}
    return {"grid": draft.grid, "steps": [step_value(s, numbers) for s in draft.steps]}


def step_value(step: Step, numbers: Mapping[str, int]) -> Value:
    """A step with its statements as numbers. Strings of the method become numbers only in fields that hold tensor names: a tensor may be
    called "matmul"."""

    def go(x: Any) -> Any:
        match x:
            case str():
                return numbers.get(x, x)
            case dict():
                return {name: go(v) for name, v in x.items()}
            case list() | tuple():
                return [go(v) for v in x]
            case _:
                return x

    return {
        "computes": [numbers[name] for name in step.computes],
        "dims": msgspec.to_builtins(step.dims),
        "method": {
            field: go(value) if field in step.method.names else value
            for field, value in msgspec.to_builtins(step.method).items()
        },
    }
