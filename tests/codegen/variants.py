"""Choosers of the variant that a test is about, besides `choice.chooser.Prefer`."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from monotile.choice.chooser import MODEL, Chooser, Question
from monotile.choice.spec import Value, plain

T = TypeVar("T")


def by(method: str) -> Callable[[Value], bool]:
    """Of a cut: one step by such a method. A way with several steps, or by another one, is none."""
    return lambda value: [s["method"]["type"] for s in value["steps"]] == [method]


class Wherever:
    """Cuts that are the least `far` from what is wanted, where any is less than infinitely far; and one stage instead of two exactly where it is
    cut so."""

    wants_all = True

    def __init__(self, far: Callable[[Value], float], otherwise: Chooser = MODEL) -> None:
        self.far, self.otherwise = far, otherwise
        self.found: set[float] = set()  # seconds of such cuts, by which a union of two is known

    def choose(self, question: Question[T], ways: Iterable[T]) -> T | None:
        every = list(ways)
        if question.kind == "one stage":
            union = next(way for way in every if question.value(way))
            together = question.cost(union) in self.found
            return next(way for way in every if question.value(way) == together)
        if question.kind != "cut" or not every:
            return self.otherwise.choose(question, every)
        best = min(every, key=lambda way: self.far(plain(question.value(way))))
        if self.far(plain(question.value(best))) == math.inf:
            return self.otherwise.choose(question, every)
        self.found.add(question.cost(best))
        return best


@dataclass(frozen=True)
class Numbered:
    """Of the ways of this kind whose value `holds`, that one, whatever it costs; counted from the first again behind the last."""

    kind: str
    holds: Callable[[Value], bool]
    number: int
    otherwise: Chooser = MODEL
    wants_all: bool = True

    def choose(self, question: Question[T], ways: Iterable[T]) -> T | None:
        if question.kind != self.kind:
            return self.otherwise.choose(question, ways)
        every = list(ways)
        wanted = [way for way in every if self.holds(plain(question.value(way)))]
        if not wanted:
            return self.otherwise.choose(question, every)
        return wanted[self.number % len(wanted)]


def product_by(holds: Callable[[Value], bool], number: int) -> Numbered:
    """The `number`-th block of a product whose method `holds`, as a step of whole sums."""

    def of_step(value: Value) -> bool:
        match value:
            case {"method": inner} | {"steps": [inner, *_]}:
                return of_step(inner)
            case {"type": _}:
                return holds(value)
            case _:
                return False

    whole = Numbered("split", lambda parts: parts == 1, 0)
    return Numbered("cut", of_step, 0, Numbered("blocks", of_step, number, whole))
