"""The statements in the sides of a Python `if` that is converted (`conversion.py`): which may be there, and what they assign."""

import ast
from collections import Counter
from collections.abc import Iterable
from typing import Any

Body = list[ast.stmt]
OWN = "_monotile_"  # prefix of generated names
RESULT = f"{OWN}result"  # of a function whose returns were moved


def lines_of(test: ast.expr, lines: Iterable[int]) -> list[int]:
    """Those of `lines` at which `test` is."""
    return [k for k in lines if test.lineno <= k <= (test.end_lineno or test.lineno)]


def assigned(body: Iterable[ast.stmt]) -> set[str]:
    """The names that are bound."""
    found = (x for s in body for x in ast.walk(s) if isinstance(x, ast.Name))
    return {x.id for x in found if isinstance(x.ctx, ast.Store)}


def loads(s: ast.stmt) -> Counter[str]:
    """How often each name is read, `+=` included."""
    found = Counter[str]()
    for x in ast.walk(s):
        if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load):
            found[x.id] += 1
        elif isinstance(x, ast.AugAssign) and isinstance(x.target, ast.Name):
            found[x.target.id] += 1
    return found


def may_run(body: Iterable[ast.stmt], *, looped: bool = False) -> bool:
    """Whether `body` changes nothing but local names and tensors, as far as its text says. looped: it is in a loop of the same side."""
    return all(_may_run(s, looped) for s in body)


def _may_run(s: ast.stmt, looped: bool) -> bool:
    match s:
        case ast.Pass() | ast.Assert() | ast.Expr(ast.Constant()):
            return True
        case ast.Break() | ast.Continue():
            return looped
        case ast.Assign(targets):
            return all(map(_is_target, targets))
        case ast.AnnAssign(target, _, value):
            return isinstance(target, ast.Name) and value is not None
        case ast.AugAssign(target):
            return _is_target(target) or _is_attribute(target)
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(owner), name))):
            return owner.startswith(OWN) or _is_in_place(name)
        case ast.Expr(ast.Call(ast.Attribute(_, name))):
            return _is_in_place(name)
        case ast.If(_, body, orelse):
            return may_run([*body, *orelse], looped=looped)
        case ast.For(target, _, body, orelse):
            return _is_target(target) and may_run(body, looped=True) and may_run(orelse)
        case ast.With(items, body):
            names = [x.optional_vars for x in items if x.optional_vars is not None]
            return all(map(_is_target, names)) and may_run(body, looped=looped)
        case _:
            return False


def _is_target(t: ast.expr) -> bool:
    match t:
        case ast.Name() | ast.Subscript():
            return True
        case ast.Tuple(elts) | ast.List(elts):
            return all(map(_is_target, elts))
        case ast.Starred(value):
            return _is_target(value)
        case _:
            return False


def _is_attribute(t: ast.expr) -> bool:
    return isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name)


def _is_in_place(name: str) -> bool:
    """Whether a method is PyTorch's, in place."""
    return name.endswith("_") and not name.endswith("__")


def guarded(body: Body, choice: str) -> Body:
    """`body` with what it changes in place shown to `choice`, which refuses what is no tensor (`selection.Choice.changed`)."""
    return [new for s in body for new in _guarded(s, choice)]


def _guarded(s: ast.stmt, choice: str) -> Body:
    before = Body()
    match s:
        case ast.Assign(targets):
            for t in targets:
                _guard_target(t, choice)
        case ast.AugAssign(ast.Name(name) as target):
            text = ast.Expr(_call(choice, "added_to", ast.Name(name, ast.Load())))
            before = [_like(text, target)]
        case ast.AugAssign(ast.Attribute(owner, name) as target):
            read = ast.Attribute(owner, name, ast.Load())
            before = [_like(ast.Expr(_call(choice, "changed", read)), target)]
        case ast.AugAssign(target):
            _guard_target(target, choice)
        case ast.Expr(ast.Call(ast.Attribute(owner) as method)) if _is_in_place(method.attr):
            method.value = _call(choice, "changed", owner)
        case ast.If() | ast.For():
            s.body, s.orelse = guarded(s.body, choice), guarded(s.orelse, choice)
        case ast.With():
            s.body = guarded(s.body, choice)
        case _:
            pass
    return [*before, s]


def _guard_target(t: ast.expr, choice: str) -> None:
    for x in ast.walk(t):
        if isinstance(x, ast.Subscript) and isinstance(x.ctx, ast.Store):
            x.value = _call(choice, "changed", x.value)


def _call(choice: str, method: str, given: ast.expr) -> ast.expr:
    found = ast.Call(ast.Attribute(ast.Name(choice, ast.Load()), method, ast.Load()), [given], [])
    return _like(found, given) if hasattr(given, "lineno") else found


def _like(node: Any, other: ast.AST) -> Any:
    """`node` and the new ones in it at the place of `other`."""
    for x in ast.walk(node):
        if isinstance(x, (ast.expr, ast.stmt)) and not hasattr(x, "lineno"):
            ast.copy_location(x, other)
    return node


def fold(body: Body, end: type[ast.stmt], lines: frozenset[int]) -> Body | None:
    """`body` with what is behind an `if` at `lines` moved into the side that goes on, where the other ends with an `end`: a Return of the
    function, or a Continue of the loop, whose body it is. None if there is no such `if`.

    An `end` at the end of a side is left out there; what a function returns is then the value of `RESULT`.
    """
    for k, s in enumerate(body):
        if isinstance(s, ast.If) and _holds(s, end) and _is_wanted(s, lines):
            ended = [_ends(s.body, end), _ends(s.orelse, end)]
            if not any(ended):
                return None  # both go on: the rest would be there twice
            rest = body[k + 1 :]
            ways = [x if e else [*x, *rest] for x, e in zip((s.body, s.orelse), ended, strict=True)]
            s.body, s.orelse = (_without(fold(x, end, lines) or x, end) for x in ways)
            s.body = s.body or [ast.copy_location(ast.Pass(), s.test)]
            return [*body[:k], s]
    return None


def _is_wanted(s: ast.If, lines: frozenset[int]) -> bool:
    """Whether it, or an `if` directly in it, is at `lines`."""
    inside = [x for x in (*s.body, *s.orelse) if isinstance(x, ast.If)]
    return bool(lines_of(s.test, lines)) or any(_is_wanted(x, lines) for x in inside)


def _holds(s: ast.If, end: type[ast.stmt]) -> bool:
    inside = (*s.body, *s.orelse)
    return any(isinstance(x, end) or (isinstance(x, ast.If) and _holds(x, end)) for x in inside)


def _ends(body: Body, end: type[ast.stmt]) -> bool:
    match body[-1] if body else None:
        case ast.If(_, first, second):
            return _ends(first, end) and _ends(second, end)
        case last:
            return isinstance(last, (end, ast.Raise))


def _without(body: Body, end: type[ast.stmt]) -> Body:
    """`body` without the `end` at its end."""
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        last.body = _without(last.body, end) or [ast.copy_location(ast.Pass(), last.test)]
        last.orelse = _without(last.orelse, end)
        return body
    if isinstance(last, end):
        body = body[:-1]
    elif isinstance(last, ast.Raise):
        return body
    if end is not ast.Return:
        return body
    value = last.value if isinstance(last, ast.Return) and last.value else ast.Constant(None)
    result = ast.Assign([ast.Name(RESULT, ast.Store())], value)
    return [*body, _like(result, last) if last else result]
