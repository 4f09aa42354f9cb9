"""Prefetches the operands of rows in registers: all operands of a row together, and in each round those of the next round's row."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from monotile.ir.expr import Expr, Load, substitute
from monotile.kernels.common.cuda_prefetch import known_ahead
from monotile.kernels.common.cuda_rows import Rows


class Prefetched(NamedTuple):
    """Names of the prefetched operands. once: loaded once, taken as "early". by_round: loaded in each round for the next one, taken as
    "next"."""

    once: tuple[str, ...] = ()
    by_round: tuple[str, ...] = ()


def _wanted(step: Rows) -> tuple[dict[Load, Expr], dict[Load, Expr]]:
    """The loads of the lane's elements with their conditions: from tensors that no launch changes, and the others."""
    e = step.e
    made = [s for s in step.found.evaluated if step.found.along(s)]
    bodies = [substitute(s.body, step.point(s)) for s in made]
    steady, rest = dict[Load, Expr](), dict[Load, Expr]()
    for x, when in known_ahead(e, bodies).items():
        (steady if x.tensor.name in e.constant else rest)[x] = when
    return steady, rest


def prefetch_row(step: Rows, await_: str) -> Prefetched:
    """Issues all loads of the lane's elements before any is used: those from tensors that no launch changes, the hand-off `await_`, and the
    others."""
    steady, rest = _wanted(step)
    early = _prefetch_early(step, steady, "rows_steady")
    step.e.writer.write(await_)
    _load(step, rest, "rows_held")
    return Prefetched(early)


def prefetch_first_rows(step: Rows, await_: str) -> Prefetched:
    """The same where there are several rounds: issues the loads that all rows share, and those of the first round's rows."""
    steady, rest = _wanted(step)
    one = _prefetch_apart(step, steady, "steady")
    step.e.writer.write(await_)
    two = _prefetch_apart(step, rest, "held")
    return Prefetched(one.once + two.once, one.by_round + two.by_round)


def _prefetch_apart(step: Rows, wanted: Mapping[Load, Expr], name: str) -> Prefetched:
    """Issues the loads `wanted`: separately those that depend on the row and those that all rows share."""
    own, every = _apart(step, wanted)
    once = _prefetch_early(step, every, f"all_{name}")
    by_round = _later_rows(step, own, f"rows_{name}")
    _fetch_first(step, by_round)
    return Prefetched(once, by_round)


def write_prefetch(step: Rows) -> Prefetched:
    """Writes the functor `ahead`, which issues the loads that all rows share, and those of the first round's rows."""
    once, by_round = list[str](), list[str]()
    for wanted, name in zip(_wanted(step), ("steady", "held"), strict=True):
        own, every = _apart(step, wanted)
        once += _later(step, every, f"all_{name}")
        by_round += _later_rows(step, own, f"rows_{name}")
    with step.e.writer.open("auto ahead = [&]", fence=True, tail=";"):
        for name in once:
            _fetch_later(step, name, "early", "start")
        _fetch_first(step, by_round)
    return Prefetched(tuple(once), tuple(by_round))


def _apart(step: Rows, wanted: Mapping[Load, Expr]) -> tuple[dict[Load, Expr], dict[Load, Expr]]:
    """Splits `wanted` into the loads that depend on the row and those that do not."""
    e, row = step.e, step.row
    assert row is not None
    v = row.variable.name
    own = {x: when for x, when in wanted.items() if v in e.variables(x) | e.variables(when)}
    return own, {x: when for x, when in wanted.items() if x not in own}


def _later_rows(step: Rows, wanted: Mapping[Load, Expr], name: str) -> tuple[str, ...]:
    """Writes the functor that loads a row's operands, and the variables for the next round's. Returns the operands' names."""
    if not wanted or step.row is None:
        return ()
    _write_fetch(step, wanted, name, [step.row.variable.name, "start"])
    _declare_later(step, name, "next")
    return (name,)


def _fetch_first(step: Rows, names: Sequence[str]) -> None:
    """Issues the loads of the first round's rows."""
    if not names:
        return
    with step.e.writer.open("", fence=True):
        step.take_row("group")
        for name in names:
            _fetch_rows(step, name)


def prefetch_next_rows(step: Rows, names: Sequence[str]) -> None:
    """Takes this round's prefetched operands, then issues the loads of the next round's before any operand is used."""
    if not names:
        return
    take(step, names, "next")
    with step.e.writer.open(f"if (round + 1 < {step.rounds})", fence=True):
        step.take_row(step.number("(round + 1)"))
        for name in names:
            _fetch_rows(step, name)


def take(step: Rows, names: Sequence[str], when: str) -> None:
    """Copies the prefetched operands `when`_`name` to the variables `name`."""
    w = step.e.writer
    for name in names:
        w.write(f"{_kind(name, when)} {name}[{step.turns}];")
        head = f"for (idx turn = 0; turn < {step.turns}; ++turn)"
        with w.open(head, ["turn"], fence=True) as block:
            block.pragma = "#pragma unroll"
            w.write(f"{name}[turn] = {when}_{name}[turn]{'.whole()' * step.packed};")


def _fetch_rows(step: Rows, name: str) -> None:
    """Issues the loads of the current row."""
    assert step.row is not None
    _fetch_later(step, name, "next", f"{step.row.variable.name}, start")


def _prefetch_early(step: Rows, wanted: Mapping[Load, Expr], name: str) -> tuple[str, ...]:
    """Issues the loads `wanted` before the hand-off. Returns the operands' names, by which they are taken after it."""
    names = _later(step, wanted, name)
    for each in names:
        _fetch_later(step, each, "early", "start")
    return names


def _later(step: Rows, wanted: Mapping[Load, Expr], name: str) -> tuple[str, ...]:
    """Writes the functor for the loads `wanted`, and the variables for their results. Returns the operands' names."""
    if not wanted:
        return ()
    _write_fetch(step, wanted, name, ["start"])
    _declare_later(step, name, "early")
    return (name,)


def _kind(name: str, when: str) -> str:
    """The type of what `fetch_name` returns; if it is prefetched as "next", it has the row as a parameter too."""
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


def _load(step: Rows, wanted: Mapping[Load, Expr], name: str) -> None:
    """Loads `wanted` into the array `name`, one element per iteration."""
    w = step.e.writer
    if not wanted:
        return
    _write_fetch(step, wanted, name, ["start"])
    w.write(f"decltype(fetch_{name}(0)) {name}[{step.turns}]{{}};")
    with step.each_turn():
        w.write(f"{name}[turn] = fetch_{name}(start);")


def _write_fetch(step: Rows, wanted: Mapping[Load, Expr], name: str, given: Sequence[str]) -> None:
    """Writes the functor `fetch_name` with the index parameters `given`, which loads `wanted`; the step then reads them as elements of
    `name`."""
    e = step.e
    parameters = ", ".join(f"idx {v}" for v in given)
    with e.writer.open(f"auto fetch_{name} = [&]({parameters})", given, fence=True, tail=";"):
        step.names |= e.held(wanted, step.method.vector, f"{name}[turn]")
