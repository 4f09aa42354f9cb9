"""Normal forms of groups without tensor names. A network repeats its layers, so a result found for one group holds for all groups of equal
form.

Forms are exact: groups of equal form have the same expressions, including the order of terms. They differ only in which tensors they
read and write.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from monotile.ir.expr import Load, Tensor, map_loads
from monotile.ir.program import Compute, Scatter
from monotile.kernels.draft import Context, Draft
from monotile.kernels.group import Group
from monotile.plan.nodes import Method


@dataclass(frozen=True, slots=True)
class Form:
    """first: the first group seen with this form. names: maps the names of first's tensors to this group's."""

    first: Group
    names: Mapping[str, str]


def form(group: Group, context: Context) -> Form:
    """The form of a group that no family has matched as a whole."""
    return context.of_worker.once(("form", group), lambda: _form(group, context))


def _form(group: Group, context: Context) -> Form:
    numbers: dict[str, int] = {}
    steps: list[list[tuple[Compute | Scatter, tuple[int, ...]]]] = []
    for step in group.steps:
        plain = [context.of_worker.once(("nameless", s), lambda s=s: _nameless(s)) for s in step]
        steps.append(
            [(s, tuple(numbers.setdefault(n, len(numbers)) for n in names)) for s, names in plain]
        )
    rows = tuple(tuple((numbers[n], p, lead) for n, p, lead in row) for row in group.rows)
    known = tuple((context.tables.get(n, 0), n in context.streamed) for n in numbers)
    key = ("of form", tuple(map(tuple, steps)), rows, known)
    first, names = context.of_worker.once(key, lambda: (group, tuple(numbers)))
    return Form(first, dict(zip(names, numbers, strict=True)))


def _nameless(s: Compute | Scatter) -> tuple[Compute | Scatter, tuple[str, ...]]:
    """`s` with its tensor names replaced by numbers in order of first appearance, and the names in that order."""
    names: dict[str, str] = {}

    def own(t: Tensor) -> Tensor:
        return msgspec.structs.replace(t, name=names.setdefault(t.name, str(len(names))))

    def go(x: Load) -> Load:
        return Load(own(x.tensor), x.index)

    def end(t: Tensor | None) -> Tensor | None:
        return None if t is None else own(t)

    if isinstance(s, Compute):
        body = map_loads(s.body, go)
        live = tuple(
            msgspec.structs.replace(x, first=end(x.first), last=end(x.last), within=end(x.within))
            for x in s.live
        )
        plain = msgspec.structs.replace(s, out=own(s.out), body=body, live=live, origin="")
    else:
        plain = msgspec.structs.replace(
            s,
            base=own(s.base),
            index=tuple(map_loads(e, go) for e in s.index),
            value=map_loads(s.value, go),
            out=own(s.out),
            origin="",
        )
    return plain, tuple(names)


def renamed(draft: Draft, group: Group, names: Mapping[str, str]) -> Draft:
    """`draft` for `group`, which has the same form. names: maps the names of the draft's tensors to the group's."""

    def go(x: Any) -> Any:
        match x:
            case str():
                return names.get(x, x)
            case tuple():
                return tuple(map(go, x))  # pyright: ignore[reportUnknownArgumentType]
            case _:
                return x

    steps = tuple(
        msgspec.structs.replace(s, computes=go(s.computes), method=_method(s.method, go))
        for s in draft.steps
    )
    local = {names[n]: where for n, where in draft.local.items()}
    return replace(draft, group=group, steps=steps, local=local)


def _method(method: Method, go: Callable[[Any], Any]) -> Method:
    if not method.names:
        return method
    assert isinstance(method, msgspec.Struct)
    return msgspec.structs.replace(method, **{f: go(getattr(method, f)) for f in method.names})  # pyright: ignore[reportReturnType]
