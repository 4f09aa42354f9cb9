"""A table of passes: what each one needs and sets, checked before anything runs, and the loop that runs it.

A fact is a few words that name something later passes rely on ("views inlined"). The tables are in `monotile/pipeline.py`.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from monotile.config import Options
from monotile.errors import InternalError
from monotile.targets.target import Target


@dataclass(frozen=True, slots=True)
class Condition:
    """Where a pass is run. absent: what is said where it is not, such as "option roll is off". holds: of the target, if there is one yet."""

    absent: str
    holds: Callable[[Target | None, Options], bool]


def option(name: str) -> Condition:
    """Where the field `name` of the options is true."""
    return Condition(f"option {name} is off", lambda _, options: bool(getattr(options, name)))


def capability(name: str) -> Condition:
    """Where the field `name` of the target's capabilities is true."""
    return Condition(
        f"no capability {name}", lambda t, _: t is not None and bool(getattr(t.has, name))
    )


class Product(Protocol):
    """What a pass takes and gives: a frozen value that holds what exists so far."""

    @property
    def target(self) -> Target | None: ...

    @property
    def options(self) -> Options: ...

    def show(self) -> str:
        """As text, a newline at its end."""
        ...

    def changed(self, before: Self) -> str:
        """What is different from `before`, in a few words; NOTHING where nothing is."""
        ...


S = TypeVar("S", bound=Product)
NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Pass(Generic[S]):
    """One line of a table.

    name:  unique in its table. run: pure.
    why:   why it stands where it stands, a sentence.
    needs: facts that hold before it. sets: facts that hold after it.
    after: facts that have to hold before it wherever the pass that sets them runs at all.
    where: it is left out where one of these conditions does not hold.
    """

    name: str
    run: Callable[[S], S]
    why: str
    needs: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    where: tuple[Condition, ...] = ()

    def left_out(self, target: Target | None, options: Options) -> str:
        """Why it is left out; "" where it is run."""
        return next((c.absent for c in self.where if not c.holds(target, options)), "")


@dataclass(frozen=True, slots=True)
class Trace:
    """What became of a pass. seconds: that it took. changed: what its product differs in, in a few words. left_out: why it was not run, else ""."""

    name: str
    seconds: float
    changed: str
    left_out: str = ""


def checked(passes: Iterable[Pass[S]], before: Sequence[Pass[Any]] = ()) -> tuple[Pass[S], ...]:
    """`passes`, if each of them has what it needs.

    before: the table that has been run by then.
    Raises InternalError where a fact is needed that no pass before it sets, or only one that may be left out where this one is run;
    where a fact of `after` is set by no pass before it; where two passes have one name, or one does not say why it stands there.
    """
    table = tuple(passes)
    done = list[Pass[Any]](before)
    for p in table:
        if any(q.name == p.name for q in done):
            raise InternalError(f"two passes are called {p.name}")
        if not p.why.endswith("."):
            raise InternalError(f"{p.name} does not say why it stands where it stands")
        for fact in (*p.needs, *p.after):
            by = [q for q in done if fact in q.sets]
            if not by:
                raise InternalError(f'{p.name} needs "{fact}", which no pass before it sets')
            if fact in p.needs and not any({*q.where} <= {*p.where} for q in by):
                raise InternalError(
                    f'{p.name} needs "{fact}", and {by[0].name} may be left out where {p.name} is not'
                )
        done.append(p)
    return table


def run(
    table: Sequence[Pass[S]],
    state: S,
    watch: Callable[[str, S], None] | None = None,
    traces: list[Trace] | None = None,
) -> S:
    """What the last pass gives.

    watch: is given the name and the product of each pass that is run. traces: gets an entry for each pass.
    """
    for p in table:
        left_out = p.left_out(state.target, state.options)
        before, start = state, time.perf_counter()
        if not left_out:
            state = p.run(before)
        seconds = time.perf_counter() - start
        if watch is not None and not left_out:
            watch(p.name, state)
        if traces is not None:
            traces.append(Trace(p.name, seconds, state.changed(before), left_out))
    return state
