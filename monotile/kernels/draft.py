"""A group cut into tasks (Draft), and the context of the search for it."""

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from monotile.analysis.in_place import tables_of
from monotile.analysis.streaming import streamed_weights
from monotile.choice.chooser import MODEL, Chooser, Question
from monotile.choice.spec import Value
from monotile.ir.program import Program
from monotile.kernels.group import Group
from monotile.plan.nodes import Step
from monotile.plan.places import BoxDim
from monotile.targets.target import Target

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Local:
    """A tensor of which a task holds `box` on chip, at byte `offset`. pitch: elements from row to row."""

    offset: int
    box: tuple[BoxDim, ...]
    pitch: int


@dataclass(frozen=True, slots=True)
class Draft:
    """A group cut into tasks. shared_bytes: on-chip memory. seconds: the cost model's estimate for the stage."""

    group: Group
    grid: tuple[int, ...]
    steps: tuple[Step, ...]
    local: dict[str, Local]
    shared_bytes: int
    seconds: float

    @property
    def tasks(self) -> int:
        return math.prod(self.grid)


@dataclass(frozen=True, slots=True)
class Memo:
    """Memoised results, by the inputs that they depend on."""

    found: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, or the stored one under this key."""
        if key not in self.found:
            self.found[key] = make()
        return self.found[key]


@dataclass(frozen=True, slots=True)
class Context:
    """The inputs of cutting besides the group. tables: the number of leading table dimensions of weights that have some. streamed: weights
    that every use reads from memory again (`analysis/streaming.py`). copied: weights that may be copied (`Weight.copied`).

    drafts: the groups cut so far. slower: seconds within which no way was found to cut others. memo: results that depend on the number
    of workers. of_worker: results that do not, shared by the contexts of parts of the machine. chooser: decides between alternatives.
    """

    tables: dict[str, int]
    target: Target
    drafts: "dict[Group, Draft | None]" = field(
        default_factory=dict["Group", "Draft | None"], repr=False
    )
    slower: "dict[Group, float]" = field(default_factory=dict["Group", float], repr=False)
    memo: Memo = field(default_factory=Memo, repr=False)
    of_worker: Memo = field(default_factory=Memo, repr=False)
    chooser: Chooser = field(default=MODEL, repr=False)
    streamed: frozenset[str] = frozenset()
    copied: frozenset[str] = frozenset()

    @staticmethod
    def of(program: Program, target: Target, chooser: Chooser = MODEL) -> "Context":
        on_chip = target.workers * target.shared_bytes
        streamed = streamed_weights(program, target.cached_weight_bytes, on_chip)
        copied = frozenset(w.tensor.name for w in program.weights if w.copied)
        return Context(
            tables_of(program), target, chooser=chooser, streamed=streamed, copied=copied
        )

    def choose(
        self,
        kind: str,
        ways: Iterable[T],
        *,
        shape: Callable[[], str],
        cost: Callable[[T], float],
        value: Callable[[T], Value],
        around: Callable[[], str] | None = None,
        ranked: bool = False,
    ) -> T | None:
        """One of `ways`, None if there are none: the Chooser's choice. The other parameters are those of `choice.chooser.Question`."""
        target = self.target
        question = Question(kind, shape, cost, value, target.name, target.workers, around, ranked)
        return self.chooser.choose(question, ways)

    def whether(
        self,
        kind: str,
        cost: Callable[[bool], float],
        *,
        shape: Callable[[], str],
        around: Callable[[], str] | None = None,
        first: bool = False,
    ) -> bool:
        """Yes or no; `first` where both cost the same."""
        ways = (first, not first)
        found = self.choose(kind, ways, shape=shape, cost=cost, value=bool, around=around)
        assert found is not None
        return found
