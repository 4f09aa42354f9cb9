"""The functions of a translation unit: stages with equal code share one, with the addresses of their tensors as parameters.

Layers that were not rolled into a loop, because something between them differs, still have most of their stages in common.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from monotile.ir.expr import Expr, Tensor
from monotile.plan.places import Place

IN_FRONT = "in_front"  # in a body: how many workers come before the first task's, counted round
WORDS = re.compile(r"(\w+)")


@dataclass(frozen=True, slots=True)
class Base:
    """The base pointer of `part` of `tensor` in `place`, as the caller computes it."""

    tensor: Tensor
    place: Place
    part: Expr


class Written(NamedTuple):
    """An emitted stage, as `Functions.add` takes it."""

    name: str
    body: str
    given: Mapping[str, str]
    parameters: Sequence[tuple[str, str, Base | str]]
    names: Sequence[str]
    in_front: int


@dataclass(slots=True)
class Function:
    """parameters: name -> C type. callers: stages that call it. body: with its braces. in_front: the value of `IN_FRONT`; None where
    callers differ, so that it is a parameter."""

    name: str
    parameters: Mapping[str, str]
    body: str
    in_front: int | None
    callers: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        """The body, with `IN_FRONT` where it is known."""
        return self.body if self.in_front is None else _with_in_front(self.body, self.in_front)

    @property
    def declarations(self) -> Iterator[str]:
        for name, kind in self.parameters.items():
            yield f"{kind} {name}"


class Functions:
    """By the name of the stage, in order of addition. lean: functions have only the parameters that they use, and stages on other
    workers share one."""

    def __init__(self, written: Iterable[Written] = (), *, lean: bool = False) -> None:
        self._lean = lean
        self._by_text: dict[tuple[object, ...], Function] = {}
        self._calls: dict[str, tuple[Function, tuple[Base | str, ...], int]] = {}
        for stage in written:
            self.add(*stage)

    def add(
        self,
        name: str,
        body: str,
        given: Mapping[str, str],
        parameters: Sequence[tuple[str, str, Base | str]],
        names: Sequence[str],
        in_front: int,
    ) -> None:
        """Adds stage `name`, computed by `body`.

        given: name -> C type of the parameters of every function. parameters: (name, C type, argument) of those that `body` may use;
        unused ones are dropped. names: its other names that come from tensors. in_front: the value of `IN_FRONT`.
        """
        if in_front and not self._lean:
            body, in_front = _with_in_front(body, in_front), 0
        pieces = WORDS.split(body)
        words = set(pieces[1::2])
        if self._lean and not any(w.startswith("MT_") for w in words):  # a macro may use any
            given = {n: kind for n, kind in given.items() if n in words}
        needed = [p for p in parameters if p[0] in words]
        numbers = {n: f"t{k}" for k, n in enumerate((*(p[0] for p in needed), *names))}
        same = "".join([numbers.get(piece, piece) for piece in pieces])
        key = (same, *(kind for _, kind, _ in needed))
        if key not in self._by_text:
            kinds = {**given, **{p[0]: p[1] for p in needed}}
            self._by_text[key] = Function(name, kinds, body, in_front)
        found = self._by_text[key]
        if found.in_front not in (in_front, None):
            found.in_front, found.parameters = None, {**found.parameters, IN_FRONT: "const idx"}
        found.callers.append(name)
        self._calls[name] = found, (*given, *(p[2] for p in needed)), in_front

    def __iter__(self) -> Iterator[Function]:
        return iter(self._by_text.values())

    def call(self, name: str) -> tuple[Function, tuple[Base | str, ...]]:
        """The function that computes stage `name`, and its arguments."""
        found, given, in_front = self._calls[name]
        return found, given if found.in_front is not None else (*given, str(in_front))


def _with_in_front(body: str, in_front: int) -> str:
    return re.sub(rf"\b{IN_FRONT}\b", str(in_front), body)
