"""Prefetches the operands of rows in registers: all of a row at once, and in each round the next row's."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from monotile.ir.expr import Expr, Load, substitute
from monotile.kernels.common.cuda_prefetch import known_ahead
from monotile.kernels.common.cuda_rows import Rows


class Asked(NamedTuple):
    """Names of what was asked for: once, to be taken as "early"; in every round for the next one, as "next"."""

    once: tuple[str, ...] = ()
    by_round: tuple[str, ...] = ()


def _wanted(step: Rows) -> tuple[dict[Load, Expr], dict[Load, Expr]]:
    """All that the lane's elements read, with its conditions: what no launch changes, and the rest."""
    e = step.e
    made = [s for s in step.found.evaluated if step.found.along(s)]
    bodies = [substitute(s.body, step.point(s)) for s in made]
    steady, rest = dict[Load, Expr](), dict[Load, Expr]()
    for x, when in known_ahead(e, bodies).items():
        (steady if x.tensor.name in e.constant else rest)[x] = when
    return steady, rest


def ask_all(step: Rows, await_: str) -> Asked:
    """Asks for all that the lane's elements read, before any of it is used: what no launch changes, then the statement
    `await_`, then the rest."""
    steady, rest = _wanted(step)
    early = _ask_early(step, steady, "rows_steady")
    step.e.writer.write(await_)
    _ask(step, rest, "rows_held")
    return Asked(early)


def ask_first(step: Rows, await_: str) -> Asked:
    """The same before several rounds: asks for what all rows read alike, and for the first round's rows."""
    steady, rest = _wanted(step)
    one = _ask_apart(step, steady, "steady")
    step.e.writer.write(await_)
    two = _ask_apart(step, rest, "held")
    return Asked(one.once + two.once, one.by_round + two.by_round)


def _ask_apart(step: Rows, wanted: Mapping[Load, Expr], name: str) -> Asked:
    """Loads `wanted`, what depends on the row apart from what does not."""
    own, every = _apart(step, wanted)
    once = _ask_early(step, every, f"all_{name}")
    by_round = _later_rows(step, own, f"rows_{name}")
    _fetch_first(step, by_round)
    return Asked(once, by_round)


def write_ahead(step: Rows) -> Asked:
    """The functor `ahead`, which asks for what all rows read alike, and for the first round's rows."""
    once, by_round = list[str](), list[str]()
    for wanted, name in zip(_wanted(step), ("steady", "held"), strict=True):
        own, every = _apart(step, wanted)
        once += _later(step, every, f"all_{name}")
        by_round += _later_rows(step, own, f"rows_{name}")
    with step.e.writer.open("auto ahead = [&]", fence=True, tail=";"):
        for name in once:
            _fetch_later(step, name, "early", "start")
        _fetch_first(step, by_round)
    return Asked(tuple(once), tuple(by_round))


def _apart(step: Rows, wanted: Mapping[Load, Expr]) -> tuple[dict[Load, Expr], dict[Load, Expr]]:
    """What of `wanted` depends on the row, and what does not."""
    e, row = step.e, step.row
    assert row is not None
    v = row.variable.name
    own = {x: when for x, when in wanted.items() if v in e.variables(x) | e.variables(when)}
    return own, {x: when for x, when in wanted.items() if x not in own}


def _later_rows(step: Rows, wanted: Mapping[Load, Expr], name: str) -> tuple[str, ...]:
    """The function that asks for what a row reads, and where the next round's waits; gives the names to be taken in it."""
    if not wanted or step.row is None:
        return ()
    _write_fetch(step, wanted, name, [step.row.variable.name, "start"])
    _declare_later(step, name, "next")
    return (name,)


def _fetch_first(step: Rows, names: Sequence[str]) -> None:
    """Asks for what the first round's rows read."""
    if not names:
        return
    with step.e.writer.open("", fence=True):
        step.take_row("group")
        for name in names:
            _fetch_rows(step, name)


def ask_next(step: Rows, names: Sequence[str]) -> None:
    """What was asked for is this round's; asks for the next one's before any of it is used."""
    if not names:
        return
    take(step, names, "next")
    with step.e.writer.open(f"if (round + 1 < {step.rounds})", fence=True):
        step.take_row(step.number("(round + 1)"))
        for name in names:
            _fetch_rows(step, name)


def take(step: Rows, names: Sequence[str], when: str) -> None:
    """What was asked for as `when`_`name` is there as `name`."""
    w = step.e.writer
    for name in names:
        w.write(f"{_kind(name, when)} {name}[{step.turns}];")
        head = f"for (idx turn = 0; turn < {step.turns}; ++turn)"
        with w.open(head, ["turn"], fence=True) as block:
            block.pragma = "#pragma unroll"
            w.write(f"{name}[turn] = {when}_{name}[turn]{'.whole()' * step.packed};")


def _fetch_rows(step: Rows, name: str) -> None:
    """Asks for what the row reads that has just been taken."""
    assert step.row is not None
    _fetch_later(step, name, "next", f"{step.row.variable.name}, start")


def _ask_early(step: Rows, wanted: Mapping[Load, Expr], name: str) -> tuple[str, ...]:
    """Asks for loads `wanted` before the hand-off; gives the names to be taken behind it."""
    names = _later(step, wanted, name)
    for each in names:
        _fetch_later(step, each, "early", "start")
    return names


def _later(step: Rows, wanted: Mapping[Load, Expr], name: str) -> tuple[str, ...]:
    """The function that asks for loads `wanted`, and where they wait; gives the names to be taken later."""
    if not wanted:
        return ()
    _write_fetch(step, wanted, name, ["start"])
    _declare_later(step, name, "early")
    return (name,)


def _kind(name: str, when: str) -> str:
    """The type of what `fetch_name` gives, which takes the row too where it is asked for the next one."""
    return f"decltype(fetch_{name}({'0, 0' if when == 'next' else '0'}))"


def _declare_later(step: Rows, name: str, when: str) -> None:
    kind = _kind(name, when)
    kind = f"mt::Words<{kind}>" if step.packed else kind
    step.e.writer.write(f"{kind} {when}_{name}[{step.turns}]{{}};")


def _fetch_later(step: Rows, name: str, when: str, given: str) -> None:
    with step.each_turn():
        call = f"fetch_{name}({given})"
        call = f"mt::words({call})" if step.packed else call
        step.e.writer.write(f"{when}_{name}[turn] = {call};")


def _ask(step: Rows, wanted: Mapping[Load, Expr], name: str) -> None:
    """Loads `wanted` into `name`, a member for each turn."""
    w = step.e.writer
    if not wanted:
        return
    _write_fetch(step, wanted, name, ["start"])
    w.write(f"decltype(fetch_{name}(0)) {name}[{step.turns}]{{}};")
    with step.each_turn():
        w.write(f"{name}[turn] = fetch_{name}(start);")


def _write_fetch(step: Rows, wanted: Mapping[Load, Expr], name: str, given: Sequence[str]) -> None:
    """The function of the indices `given` that loads `wanted`, which is known as members of `name`."""
    e = step.e
    parameters = ", ".join(f"idx {v}" for v in given)
    with e.writer.open(f"auto fetch_{name} = [&]({parameters})", given, fence=True, tail=";"):
        step.names |= e.held(wanted, step.method.vector, f"{name}[turn]")
