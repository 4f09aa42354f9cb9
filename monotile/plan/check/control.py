"""Checks a Plan's control flow: each statement runs in the loops and branches that contain it in the Program, these are decided by the
Program's values, and their results are written where they are read."""

from collections.abc import Iterator

from monotile.analysis.in_place import carried_in_place
from monotile.ir.program import (
    Branch,
    BranchOut,
    Compute,
    Loop,
    Program,
    Scatter,
    Statement,
    statements,
)
from monotile.plan.invalid import fail
from monotile.plan.nodes import Body, Choose, Plan, Repeat, Stage
from monotile.plan.places import Final, Rotate
from monotile.plan.walk import repeats

# Loops by axis, extent, count and predicate; sides by predicate and number; outermost first.
Path = tuple[tuple[object, ...], ...]


def check_control(plan: Plan, program: Program) -> None:
    """Raises VerificationError naming the loop, branch or tensor at fault."""
    wanted = {_of_loop(s) for s in statements(program.body) if isinstance(s, Loop)}
    found = {_of_repeat(n) for n in repeats(plan.body)}
    if found != wanted:
        fail(f"its loops are {_listed(found)}, the Program's are {_listed(wanted)}")
    runs = dict(_in_plan(plan.body, ()))
    for name, path in _in_program(program.body, ()):
        if name in runs and runs[name] != path:
            fail(f"{name} is computed {_words(runs[name])}, in the Program {_words(path)}")
    for s in statements(program.body):
        if isinstance(s, Loop):
            _check_in_place(plan, s)
            if s.ends_early:
                _check_carried(plan, s)
        if isinstance(s, Branch):
            for o in s.outs:
                _check_out(plan, o)


def _check_carried(plan: Plan, loop: Loop) -> None:
    """Checks that `param` has the last iteration's result, or `init`, before each iteration, and that `out` is where `param` would be
    next."""
    for c in loop.carried:
        if c in carried_in_place(loop):
            continue
        (param, *more) = plan.places[c.param.name]
        if more or not isinstance(param, Rotate) or param.axis != loop.axis.name or param.phase:
            fail(f"{c.param.name} does not lie where the loop over {loop.axis.name} carries it")
            return
        made = [p for p in plan.places[c.result.name] if isinstance(p, Rotate)]
        if not any(
            p.axis == param.axis and p.phase == 1 and p.places == param.places and p.last is None
            for p in made
        ):
            fail(f"{c.result.name} is not made where the next iteration reads {c.param.name}")
        if param.first not in plan.places[c.init.name] or param.last is not None:
            fail(f"{c.param.name} does not begin where {c.init.name} lies")
        if plan.places.get(c.out.name, (Final(param),)) != (Final(param),):
            fail(f"{c.out.name} does not lie where the loop over {loop.axis.name} may have left it")


def _check_in_place(plan: Plan, loop: Loop) -> None:
    for c in carried_in_place(loop):
        for t in (c.param, c.result, c.out):
            if set(plan.places.get(t.name, ())) != set(plan.places[c.init.name]):
                fail(
                    f"{t.name} does not lie where {c.init.name}, which the loop over {loop.axis.name} updates, does"
                )


def _check_out(plan: Plan, o: BranchOut) -> None:
    for place in plan.places.get(o.out.name, ()):
        for made in (o.then, o.otherwise):
            if place not in plan.places[made.name]:
                fail(f"{made.name} is not made where {o.out.name} is read")


def _of_loop(s: Loop) -> tuple[str, int, str, str]:
    count, looked = (t.name if t is not None else "" for t in (s.count, s.looked_at))
    return s.axis.name, s.axis.extent, count, looked


def _of_repeat(n: Repeat) -> tuple[str, int, str, str]:
    return n.axis, n.extent, n.count, n.predicate


def _in_program(body: tuple[Statement, ...], path: Path) -> Iterator[tuple[str, Path]]:
    for s in body:
        match s:
            case Compute() | Scatter():
                yield s.out.name, path
            case Loop():
                yield from _in_program(s.body, (*path, _of_loop(s)))
            case Branch():
                for number, side in enumerate((s.otherwise, s.then)):
                    yield from _in_program(side, (*path, (s.predicate.name, number)))


def _in_plan(body: Body, path: Path) -> Iterator[tuple[str, Path]]:
    for n in body:
        match n:
            case Stage():
                yield from ((name, path) for step in n.steps for name in step.computes)
            case Repeat():
                yield from _in_plan(n.body, (*path, _of_repeat(n)))
            case Choose(index, bodies):
                for number, inner in enumerate(bodies):
                    yield from _in_plan(inner, (*path, (index, number)))


def _listed(loops: set[tuple[str, int, str, str]]) -> str:
    return ", ".join(sorted(_words((loop,)).removeprefix("in ") for loop in loops)) or "none"


def _words(path: Path) -> str:
    """ "in loop a:3, side 1 of p"."""
    out: list[str] = []
    for where in path:
        match where:
            case (axis, extent, count, predicate):
                ends = f" ({count or predicate})" if count or predicate else ""
                out.append(f"loop {axis}:{extent}{ends}")
            case (predicate, number):
                out.append(f"side {number} of {predicate}")
            case _:
                raise AssertionError(where)
    return f"in {', '.join(out)}" if out else "outside all loops and branches"
