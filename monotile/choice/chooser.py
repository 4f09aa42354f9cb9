"""Whoever has several ways to do something asks a Chooser which one it is to be.

A Question says what is asked and how to tell the ways apart; both are functions, so that a Chooser that looks at costs alone pays for nothing else.
The ways themselves are whatever is chosen between: Drafts, blocks, True and False.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from monotile.choice.spec import Key, Spec, Value, plain, to_json
from monotile.errors import ChoiceError, InternalError

T = TypeVar("T")
TOLD = 8  # ways that an error lists


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """kind, shape, target, workers: as in `Key`.

    cost:   of a way, in seconds by the cost model, or in what else is to be small. Where today's rule has a margin, it is in the cost.
    value:  what tells a way from the others, as JSON has it.
    around: where equal questions may get different answers: a digest of what these depend on besides (`Key.within`).
    ranked: the ways come in order of their cost.
    """

    kind: str
    shape: Callable[[], str]
    cost: Callable[[T], float]
    value: Callable[[T], Value]
    target: str = ""
    workers: int = 0
    around: Callable[[], str] | None = None
    ranked: bool = False

    @property
    def key(self) -> Key:
        return Key(kind=self.kind, shape=self.shape(), target=self.target, workers=self.workers)


class Chooser(Protocol):
    """For one compilation."""

    @property
    def wants_all(self) -> bool:
        """Whether it wants to see ways that can be known not to be the cheapest as well."""
        ...

    def choose(self, question: Question[T], ways: Iterable[T]) -> T | None:
        """One of `ways`; None if there are none."""
        ...


@dataclass(frozen=True, slots=True)
class Model:
    """The cheapest by the cost model, the first of equals."""

    wants_all: bool = False

    def choose(self, question: Question[T], ways: Iterable[T]) -> T | None:
        if question.ranked:
            return next(iter(ways), None)
        return min(ways, key=question.cost, default=None)


MODEL = Model()


@dataclass(frozen=True, slots=True)
class Prefer:
    """Of the ways of this kind whose value `holds` for the one that `otherwise` takes; of all, where it holds for none."""

    kind: str
    holds: Callable[[Value], bool]
    otherwise: Chooser = MODEL
    wants_all: bool = True

    def choose(self, question: Question[T], ways: Iterable[T]) -> T | None:
        if question.kind != self.kind:
            return self.otherwise.choose(question, ways)
        every = list(ways)
        wanted = [way for way in every if self.holds(plain(question.value(way)))]
        return self.otherwise.choose(question, wanted or every)


class Record:
    """As `inner` chooses; `spec` is what was chosen."""

    wants_all = True  # so that it is asked all that a Replay will be asked

    def __init__(self, inner: Chooser = MODEL) -> None:
        self.inner = inner
        self.spec: Spec = {}

    def choose(self, question: Question[T], ways: Iterable[T]) -> T | None:
        found = self.inner.choose(question, ways)
        if found is None:
            return None
        key, value = question.key, plain(question.value(found))
        if self.spec.setdefault(key, value) != value:
            if question.around is None:
                raise InternalError(f"{key} does not say all that the choice depends on")
            self.spec[msgspec.structs.replace(key, within=question.around())] = value
        return found


class Replay:
    """What `spec` says. What it does not say, `otherwise` chooses; where there is no such Chooser, a ChoiceError is raised, as where
    the way that the spec names is none of those there are."""

    wants_all = True

    def __init__(self, spec: Mapping[Key, Value], otherwise: Chooser | None = MODEL) -> None:
        self.spec, self.otherwise = {k: plain(v) for k, v in spec.items()}, otherwise
        self._special = {msgspec.structs.replace(k, within="") for k in spec if k.within}

    def choose(self, question: Question[T], ways: Iterable[T]) -> T | None:
        key = question.key
        if key in self._special and question.around is not None:
            special = msgspec.structs.replace(key, within=question.around())
            key = special if special in self.spec else key
        if key not in self.spec:
            if self.otherwise is not None:
                return self.otherwise.choose(question, ways)
            if next(iter(ways), None) is None:
                return None
            raise ChoiceError(
                f"the choices do not say what is to be done at {to_json({key: None})}"
            )
        named, seen = self.spec[key], list[Value]()
        for way in ways:
            value = plain(question.value(way))
            if value == named:
                return way
            seen.append(value)
        if not seen:
            return None
        listed = "\n".join(f"  {msgspec.json.encode(v).decode()}" for v in seen[:TOLD])
        raise ChoiceError(
            f"there is no such way as the choices name: {to_json({key: named})}\n{len(seen)} others:\n{listed}"
        )
