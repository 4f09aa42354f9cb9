"""The functions of a translation unit: stages whose code is equal but for the addresses of their tensors share one.

Layers that were not rolled into a loop, because something between them differs, still have most of their stages in common.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from monotile.ir.expr import Expr, Tensor
from monotile.plan.places import Place


@dataclass(frozen=True, slots=True)
class Base:
    """The base pointer of `part` of `tensor` in `place`, as the caller computes it."""

    tensor: Tensor
    place: Place
    part: Expr


@dataclass(slots=True)
class Function:
    """parameters: name -> C type. callers: stages that call it. body: with its braces."""

    name: str
    parameters: Mapping[str, str]
    body: str
    callers: list[str] = field(default_factory=list[str])

    @property
    def declarations(self) -> Iterator[str]:
        for name, kind in self.parameters.items():
            yield f"{kind} {name}"


class Functions:
    """By the name of the stage; in the order in which they came. lean: they are given what they mention alone."""

    def __init__(self, *, lean: bool = False) -> None:
        self._lean = lean
        self._by_text: dict[tuple[object, ...], Function] = {}
        self._calls: dict[str, tuple[Function, tuple[Base | str, ...]]] = {}

    def add(
        self,
        name: str,
        body: str,
        given: Mapping[str, str],
        parameters: Sequence[tuple[str, str, Base | str]],
        names: Sequence[str],
    ) -> None:
        """Stage `name` is computed by `body`.

        given: name -> C type of what every function is given. parameters: (name, C type, what a caller gives) of what
        `body` may need; those that it does not mention are left out. names: its other names that come from tensors.
        """
        words = set(re.findall(r"\w+", body))
        if self._lean and not any(w.startswith("MT_") for w in words):  # a macro may mention any
            given = {n: kind for n, kind in given.items() if n in words}
        needed = [p for p in parameters if p[0] in words]
        numbers = {n: f"t{k}" for k, n in enumerate((*(p[0] for p in needed), *names))}
        same = re.sub(r"\w+", lambda word: numbers.get(word[0], word[0]), body)
        key = (same, *(kind for _, kind, _ in needed))
        if key not in self._by_text:
            self._by_text[key] = Function(name, {**given, **{p[0]: p[1] for p in needed}}, body)
        found = self._by_text[key]
        found.callers.append(name)
        self._calls[name] = found, (*given, *(p[2] for p in needed))

    def __iter__(self) -> Iterator[Function]:
        return iter(self._by_text.values())

    def call(self, name: str) -> tuple[Function, tuple[Base | str, ...]]:
        """The function that computes stage `name`, and what it is given."""
        return self._calls[name]
