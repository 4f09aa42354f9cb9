"""Analysis of the statements in the branches of a converted `if` (`conversion.py`): which are allowed, and which names they read and assign."""

import ast
from collections import Counter
from collections.abc import Iterable
from typing import Any

Body = list[ast.stmt]
OWN = "_monotile_"  # prefix of generated names
FLAG = f"{OWN}is_"  # prefix of flags: bools, or tensors of one bool


def lines_of(test: ast.expr, lines: Iterable[int]) -> list[int]:
    """Those of `lines` that `test` spans."""
    return [k for k in lines if test.lineno <= k <= (test.end_lineno or test.lineno)]


def assigned(body: Iterable[ast.stmt]) -> set[str]:
    """The names that `body` binds."""
    found = (x for s in body for x in ast.walk(s) if isinstance(x, ast.Name))
    return {x.id for x in found if isinstance(x.ctx, ast.Store)}


def loads(s: ast.AST) -> Counter[str]:
    """How often each name is read, `+=` included."""
    found = Counter[str]()
    for x in ast.walk(s):
        if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load):
            found[x.id] += 1
        elif isinstance(x, ast.AugAssign) and isinstance(x.target, ast.Name):
            found[x.target.id] += 1
    return found


def read_before(body: Body, bound: frozenset[str] = frozenset()) -> frozenset[str]:
    """The names that may be read before they are bound. bound: names that are bound already."""
    found = frozenset[str]()
    for s in body:
        match s:
            case ast.If(test, first, second):
                found |= loads(ast.Expr(test)).keys() - bound
                found |= read_before(first, bound) | read_before(second, bound)
            case ast.With(items, inner):
                found |= {n for x in items for n in loads(ast.Expr(x.context_expr))} - bound
                found |= read_before(inner, bound | _with_names(s))
            case ast.Assign() | ast.Expr() | ast.AugAssign() | ast.AnnAssign() | ast.Return():
                found |= loads(s).keys() - bound
            case ast.For(target, iterable, inner, orelse):
                found |= loads(ast.Expr(iterable)).keys() - bound
                own = bound | assigned([ast.Assign([target], iterable)])
                found |= read_before(inner, own) | read_before(orelse, bound)
            case ast.While(test, inner, orelse):
                found |= loads(ast.Expr(test)).keys() - bound
                found |= read_before(inner, bound) | read_before(orelse, bound)
            case _:  # it may read a name before it binds it
                found |= (loads(s).keys() | assigned([s])) - bound
        bound |= _bound(s)
    return found


def bound_by(body: Body) -> frozenset[str]:
    """The names that are bound after `body`, if it runs to its end."""
    found = frozenset[str]()
    for s in body:
        if any(isinstance(x, (ast.Break, ast.Continue)) for x in ast.walk(s)):
            break
        found |= _bound(s)
    return found


def _bound(s: ast.stmt) -> frozenset[str]:
    """The names that are bound after `s` on every path."""
    match s:
        case ast.If(_, first, second):
            return bound_by(first) & bound_by(second)
        case ast.With(_, inner):
            return _with_names(s) | bound_by(inner)
        case ast.Assign() | ast.Expr() | ast.AugAssign() | ast.AnnAssign():
            return frozenset(assigned([s]))
        case _:
            return frozenset()


def _with_names(s: ast.With) -> frozenset[str]:
    return frozenset(assigned(ast.Expr(x.optional_vars) for x in s.items if x.optional_vars))


def may_run(body: Iterable[ast.stmt], *, looped: bool = False) -> bool:
    """Whether, by its source, `body` changes nothing but local names, tensors, and what `guarded` checks at run time. looped: whether it is in a loop
    of the same branch."""
    return all(_may_run(s, looped) for s in body)


def _may_run(s: ast.stmt, looped: bool) -> bool:
    match s:
        case ast.Pass() | ast.Assert() | ast.Expr(ast.Constant()):
            return True
        case ast.Break() | ast.Continue():
            return looped
        case ast.Assign([target]) if _is_attribute(target):
            return True
        case ast.Assign(targets):
            return all(map(_is_target, targets))
        case ast.AnnAssign(target, _, value):
            return isinstance(target, ast.Name) and value is not None
        case ast.AugAssign(target):
            return _is_target(target) or _is_attribute(target)
        case ast.Expr(ast.Call()):
            return True
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
    """Whether a method is an in-place method of PyTorch."""
    return name.endswith("_") and not name.endswith("__")


def guarded(body: Body, choice: str) -> Body:
    """`body` with run-time checks by `choice`, a `selection.TracedIf`: that objects changed in place are tensors (`changed`), of attributes that it sets
    (`kept`), and of functions called only for their effect (`called`)."""
    return [new for s in body for new in _guarded(s, choice)]


def _guarded(s: ast.stmt, choice: str) -> Body:
    before = Body()
    match s:
        case ast.Assign([ast.Attribute(ast.Name(owner), name) as target], value):
            given = [ast.Name(owner, ast.Load()), ast.Constant(name), value]
            s.value = like(_call(choice, "kept", *given), target)
        case ast.Assign(targets):
            for t in targets:
                _guard_target(t, choice)
        case ast.AugAssign(ast.Name(name) as target):
            text = ast.Expr(_call(choice, "added_to", ast.Name(name, ast.Load())))
            before = [like(text, target)]
        case ast.AugAssign(ast.Attribute(owner, name) as target):
            read = ast.Attribute(owner, name, ast.Load())
            before = [like(ast.Expr(_call(choice, "changed", read)), target)]
        case ast.AugAssign(target):
            _guard_target(target, choice)
        case ast.Expr(ast.Call(ast.Attribute(owner) as method)) if _is_in_place(method.attr):
            method.value = _call(choice, "changed", owner)
        case ast.Expr(ast.Call() as call) if not _is_own(call.func):
            call.func = _call(choice, "called", call.func)
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


def _is_own(function: ast.expr) -> bool:
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id.startswith(OWN)


def _call(choice: str, method: str, *given: ast.expr) -> ast.expr:
    function = ast.Attribute(ast.Name(choice, ast.Load()), method, ast.Load())
    found = ast.Call(function, [*given], [])
    return like(found, given[0]) if hasattr(given[0], "lineno") else found


def like(node: Any, other: ast.AST) -> Any:
    """`node`, whose new nodes get the source location of `other`."""
    for x in ast.walk(node):
        if isinstance(x, (ast.expr, ast.stmt)) and not hasattr(x, "lineno"):
            ast.copy_location(x, other)
    return node
