"""Groups apart from the names of their tensors: layers of a network repeat, and what is found for one of equal groups holds for all.

A form is exact: equal forms have the same expressions, to the order of terms. Only which tensors they read and write differs.
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
    """first: the group of this form that was met first. names: by those of its tensors, the names of the group's own."""

    first: Group
    names: Mapping[str, str]


def form(group: Group, context: Context) -> Form:
    """The form of a group that no family has matched."""
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
    """`s` with numbers for names of tensors, by first appearance, and these names."""
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
    """`draft` as one of `group`, which has the same form. names: of the group's tensors, by those of the draft's."""

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
