"""Removes early exits (return, break, continue) from the branches of a Python `if`.

If one branch ends with a return (or a continue, in a loop's body), the statements after the `if` move into the other branch. In a loop that a return
or break may leave, each iteration (of a `while`, its test) first checks a flag:

    for layer in layers:                  done = False
        x = layer(x)                      for layer in layers:
        if x.amax() > 1:                      if not done:
            return x                              x = layer(x)
    return -x                                     if x.amax() > 1:
                                                      result, done, returned = x, True, True
                                          if returned:
                                              return result
                                          return -x

The target of a `for` loop that is read after a break is assigned in `if not done` too.
"""

import ast
import copy
import itertools
from collections.abc import Callable, Iterator, Mapping

from monotile.frontends.torch.branches.statements import (
    FLAG,
    OWN,
    Body,
    assigned,
    like,
    lines_of,
    loads,
    read_before,
)

RESULT = f"{OWN}result"  # the result of a function whose returns were removed

# The replacements of exit statements, by type.
Instead = Mapping[type[ast.stmt], Callable[[ast.stmt], Body]]


def without_exits(made: ast.FunctionDef, lines: frozenset[int]) -> None:
    """Changes `made` in place, where an `if` at `lines` has a return, or a break or return of a loop."""
    made.body = _loops(made.body, lines, frozenset(), itertools.count())
    moved = fold(made.body, {ast.Return: lambda s: [_result(s)]}, lines, nothing=_result)
    if moved:
        made.body = [*moved, ast.Return(ast.Name(RESULT, ast.Load()))]


def without_continue(body: Body, lines: frozenset[int]) -> Body:
    """The body of a loop without the continues in an `if` at `lines`."""
    return fold(body, {ast.Continue: lambda _: []}, lines) or body


def beside(made: ast.FunctionDef, line: int) -> frozenset[int]:
    """The first lines of the tests of all `if`s with an exit in the loop in which the `if` at `line` has one: one is converted only with the others."""
    exits = (ast.Break, ast.Continue, ast.Return)
    found = set[int]()
    for s in ast.walk(made):
        if isinstance(s, (ast.For, ast.While)):
            inside = [x for x in s.body if isinstance(x, ast.If) and _holds(x, exits)]
            tests = [t for x in inside for t in _tests(x)]
            if any(lines_of(t, [line]) for t in tests):
                found.update(t.lineno for t in tests)
    return frozenset(found)


def _loops(body: Body, lines: frozenset[int], after: frozenset[str], count: Iterator[int]) -> Body:
    """`body` without the exits from its loops, inner loops first. after: names that may be read after it. count: numbers of loops."""
    found = Body()
    functions = (ast.FunctionDef, ast.Lambda)
    for k, s in enumerate(body):
        earlier = [x for y in body[:k] for x in ast.walk(y) if isinstance(x, functions)]
        behind = after.union(*(loads(x) for x in (*earlier, *body[k + 1 :])))
        if isinstance(s, (ast.For, ast.While, ast.If, ast.With)):
            loop = isinstance(s, (ast.For, ast.While))
            inner = behind | (read_before([s]) if loop else frozenset())
            s.body = _loops(s.body, lines, inner, count)
        if isinstance(s, ast.If):
            s.orelse = _loops(s.orelse, lines, behind, count)
        found += _loop(s, behind, lines, next(count))
    return found


def _loop(s: ast.stmt, after: frozenset[str], lines: frozenset[int], k: int) -> Body:
    """after: names that may be read after `s`. k: a number of its own."""
    inside = (
        [x for x in s.body if isinstance(x, ast.If)] if isinstance(s, (ast.For, ast.While)) else []
    )
    leaving = (ast.Return, ast.Break)
    tests = [x.test for x in inside if _is_wanted(x, lines) and _holds(x, leaving)]
    if not isinstance(s, (ast.For, ast.While)) or not tests:
        return [s]
    done, returned = f"{FLAG}done{k}", f"{FLAG}returned{k}"

    def left(x: ast.stmt) -> Body:
        by = isinstance(x, ast.Return)
        names = [done, returned] if by else [done]
        flags = [like(_assign(n, ast.Constant(True)), x) for n in names]
        return [_result(x), *flags] if by else flags

    line = min(n for x in inside for t in _tests(x) for n in lines_of(t, lines))
    instead: Instead = {ast.Return: left, ast.Break: left, ast.Continue: lambda _: []}
    before = copy.deepcopy(s)
    body = fold(s.body, instead, lines, anywhere=True)
    if body is None:
        return [s]
    going = ast.UnaryOp(ast.Not(), _read(done))
    if isinstance(s, ast.For):
        broken = any(isinstance(x, ast.Break) for x in ast.walk(before))
        s.body = [_if(going, [*(_kept_target(s, after, k) if broken else []), *body], line)]
    else:  # its test is not evaluated any more, and is a tensor if `done` is
        at = min(lines_of(s.test, lines), default=line)
        s.body, s.test = body, _if(ast.BoolOp(ast.And(), [going, s.test]), [], at).test
    orelse, s.orelse = s.orelse, Body()
    first = [like(_assign(n, ast.Constant(False)), s) for n in (done, returned)]
    last = [_if(ast.UnaryOp(ast.Not(), _read(done)), orelse, line)] if orelse else []
    if any(isinstance(x, ast.Return) for x in ast.walk(before)):
        found = ast.Return(_read(RESULT))
        last.append(like(found, s) if _is_endless(before) else _if(_read(returned), [found], line))
    return [*first, s, *last]


def _kept_target(s: ast.For, after: frozenset[str], k: int) -> Body:
    """Takes another target where its own, as a break leaves it, may be read after the loop. Returns the assignment to its own."""
    read = after.union(*map(loads, s.orelse))
    if not read & assigned([ast.Assign([s.target], s.iter)]):
        return []
    item = f"{OWN}item{k}"
    taken = ast.Assign([s.target], _read(item))
    s.target = ast.copy_location(ast.Name(item, ast.Store()), s.target)
    return [like(taken, s.target)]


def _is_endless(s: ast.For | ast.While) -> bool:
    """Whether only a return ends the loop."""
    left = any(isinstance(x, ast.Break) for x in ast.walk(s))
    return isinstance(s, ast.While) and isinstance(s.test, ast.Constant) and bool(s.test.value) and not left  # fmt: skip


def _read(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _if(test: ast.expr, body: Body, line: int) -> ast.If:
    """An `if` at `line`."""
    made = ast.If(test, body, [])
    place = ast.Pass(lineno=line, end_lineno=line, col_offset=0, end_col_offset=0)
    return like(made, place)


def _tests(s: ast.If) -> list[ast.expr]:
    inside = [x for x in (*s.body, *s.orelse) if isinstance(x, ast.If)]
    return [s.test, *(t for x in inside for t in _tests(x))]


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _result(s: ast.stmt | None) -> ast.stmt:
    value = s.value if isinstance(s, ast.Return) and s.value else ast.Constant(None)
    made = _assign(RESULT, value)
    return like(made, s) if s else made


def fold(
    body: Body,
    instead: Instead,
    lines: frozenset[int],
    *,
    anywhere: bool = False,
    nothing: Callable[[ast.stmt | None], ast.stmt] | None = None,
) -> Body | None:
    """`body` with the statements after an `if` with an exit moved into its other branch. None if there is no such `if` at `lines` (`anywhere`: at
    all), or if neither branch always exits, so that the rest would be duplicated.

    instead: the replacement of each kind of exit at the end of a branch. nothing: for a branch that ends without one.
    """
    ends = tuple(instead)
    for k, s in enumerate(body):
        if isinstance(s, ast.If) and _holds(s, ends) and (anywhere or _is_wanted(s, lines)):
            ended = [_ends(s.body, ends), _ends(s.orelse, ends)]
            if not any(ended):
                return None
            rest = body[k + 1 :]
            ways = [x if e else [*x, *rest] for x, e in zip((s.body, s.orelse), ended, strict=True)]
            s.body, s.orelse = (
                fold(x, instead, lines, anywhere=True, nothing=nothing)
                or _without(x, instead, nothing)
                for x in ways
            )
            s.body = s.body or [ast.copy_location(ast.Pass(), s.test)]
            return [*body[:k], s]
    return None


def _is_wanted(s: ast.If, lines: frozenset[int]) -> bool:
    """Whether the test of `s`, or of an `if` directly in it, is at `lines`."""
    return any(lines_of(t, lines) for t in _tests(s))


def _holds(s: ast.If, ends: tuple[type[ast.stmt], ...]) -> bool:
    inside = (*s.body, *s.orelse)
    return any(isinstance(x, ends) or (isinstance(x, ast.If) and _holds(x, ends)) for x in inside)


def _ends(body: Body, ends: tuple[type[ast.stmt], ...]) -> bool:
    match body[-1] if body else None:
        case ast.If(_, first, second):
            return _ends(first, ends) and _ends(second, ends)
        case last:
            return isinstance(last, (*ends, ast.Raise))


def _without(
    body: Body, instead: Instead, nothing: Callable[[ast.stmt | None], ast.stmt] | None
) -> Body:
    """`body` with its exit replaced."""
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        passed = ast.copy_location(ast.Pass(), last.test)
        last.body = _without(last.body, instead, nothing) or [passed]
        last.orelse = _without(last.orelse, instead, nothing)
        return body
    for kind, of in instead.items():
        if isinstance(last, kind):
            return [*body[:-1], *of(last)]
    if nothing is None or isinstance(last, ast.Raise):
        return body
    return [*body, ast.copy_location(nothing(None), last) if last else nothing(None)]
