"""If-conversion of Python's `if` on a tensor (Allen et al., 1983).

`torch.export` cannot know a tensor's truth value. Where it fails at a statement such as

    if not torch.isfinite(x).all():
        x = torch.clamp(x, -limit, limit)

whose branches only assign local names, the function is recompiled so that both branches run for a tensor condition and
`torch.where` selects the results (`selection.py`). A branch that updates a tensor in place is refused. Conditions that are not
tensors are tested as before. The function has the new code during the export and its own afterwards.
"""

import ast
import gc
import inspect
import textwrap
from collections.abc import Generator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, TracebackType

from monotile.frontends.torch.origin import is_users

MOST = 16  # limit of functions converted for one model
OWN = "_monotile_"  # prefix of generated names


class Choices:
    """The converted functions with their original code, and the codes that replace these."""

    def __init__(self) -> None:
        self._before: list[tuple[FunctionType, CodeType]] = []
        self._made: set[CodeType] = set()

    def convert(self, error: BaseException) -> bool:
        """Converts the innermost user function in which `error` was raised at a convertible `if`; returns whether there is
        one."""
        for frame, line in reversed(list(_frames(error.__traceback__))):
            old = frame.f_code
            if not is_users(old.co_filename) or old in self._made or len(self._made) >= MOST:
                continue
            new = _converted(old, line)
            if new is None:
                continue
            self._made.add(new)
            for function in gc.get_referrers(old):
                if isinstance(function, FunctionType) and function.__code__ is old:
                    self._before.append((function, old))
                    function.__code__ = new
            return True
        return False

    def restore(self) -> None:
        for function, code in self._before:
            function.__code__ = code


@contextmanager
def choices() -> Generator[Choices]:
    """Restores the code of all functions converted within."""
    found = Choices()
    try:
        yield found
    finally:
        found.restore()


def _frames(trace: TracebackType | None) -> Generator[tuple[FrameType, int]]:
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _converted(old: CodeType, line: int) -> CodeType | None:
    """`old` with its `if` statements converted; None if none of these is at `line`."""
    try:
        lines, first = inspect.getsourcelines(old)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    ast.increment_lineno(tree, first - 1)
    (made,) = tree.body if len(tree.body) == 1 else (None,)
    if not isinstance(made, ast.FunctionDef) or _has(made, ast.Global, ast.Nonlocal):
        return None
    change = _Convert(line)
    made.body = change.statements(made.body)
    if not change.there:
        return None
    made.decorator_list = []
    names = ("undecided", "Unchanged", "select", "both", "either", "opposite", "MISSING")
    made.body.insert(0, ast.ImportFrom("monotile.frontends.torch.selection", [ast.alias(n, OWN + n) for n in names], 0))  # fmt: skip
    arguments = ast.arguments([], [ast.arg(n) for n in old.co_freevars], None, [], [], None, [])
    outer = ast.FunctionDef(f"{OWN}outer", arguments, [made], [], None, None)
    if "type_params" in ast.FunctionDef._fields:
        outer.type_params = []  # pyright: ignore[reportAttributeAccessIssue]
    tree.body = [outer]
    compiled = compile(ast.fix_missing_locations(tree), old.co_filename, "exec")
    code = next(c for c in _inner(_inner([compiled])) if c.co_name == made.name)
    # Inside a class, names that begin with two underscores are mangled.
    hidden = any(n.startswith("__") and not n.endswith("__") for n in code.co_names)
    return code if code.co_freevars == old.co_freevars and not hidden else None


def _has(node: ast.AST, *kinds: type[ast.AST]) -> bool:
    return any(isinstance(x, kinds) for x in ast.walk(node))


def _inner(codes: list[CodeType]) -> list[CodeType]:
    """The functions defined directly inside."""
    return [x for code in codes for x in code.co_consts if isinstance(x, CodeType)]


class _Convert:
    """Converts `if` statements between assignments. there: whether one of them is at `line`."""

    def __init__(self, line: int) -> None:
        self.line, self.there, self.count = line, False, 0

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [new for s in body for new in self._statement(s)]

    def _statement(self, s: ast.stmt) -> list[ast.stmt]:
        if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return [s]
        both = (*s.body, *s.orelse) if isinstance(s, ast.If) else ()
        if isinstance(s, ast.If) and all(map(_assigns, both)) and not _has(s.test, ast.NamedExpr):
            self.there |= s.test.lineno <= self.line <= (s.test.end_lineno or s.test.lineno)
            return self._selection(s)
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(s, name, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                setattr(s, name, self.statements(inner))
        return [s]

    def _selection(self, s: ast.If) -> list[ast.stmt]:
        self.count += 1
        test, kept = f"{OWN}test{self.count}", f"{OWN}kept{self.count}_"
        names = sorted({n for x in (*s.body, *s.orelse) for n in _assigned(x)})
        text = [f"if {OWN}undecided({test}):"]
        text += [f"    {kept}{n} = locals().get({n!r}, {OWN}MISSING)" for n in names]
        text += [f"    with {OWN}Unchanged():", "        THEN"]
        text += [f"    {kept}then_{n} = locals().get({n!r}, {OWN}MISSING)" for n in names]
        text += [f"    {n} = {kept}{n}" for n in names]
        text += [f"    with {OWN}Unchanged():", "        ELSE"]
        text += [f"    {n} = {OWN}select({test}, {kept}then_{n}, {n})" for n in names]
        text += [f"elif {test}:", "    THEN", "else:", "    ELSE"]
        made = ast.parse("\n".join(text)).body[0]
        for node in ast.walk(made):
            if isinstance(node, (ast.expr, ast.stmt)):
                ast.copy_location(node, s.test)
        _fill(made, {"THEN": s.body, "ELSE": s.orelse or [ast.copy_location(ast.Pass(), s.test)]})
        first = ast.Assign([ast.Name(test, ast.Store())], _lazily(s.test))
        return [ast.copy_location(first, s.test), made]


def _fill(s: ast.stmt, parts: dict[str, list[ast.stmt]]) -> None:
    """Replaces placeholder names by statements."""
    for name in ("body", "orelse"):
        out: list[ast.stmt] = []
        for x in getattr(s, name, []):
            if isinstance(x, ast.Expr) and isinstance(x.value, ast.Name) and x.value.id in parts:
                out += parts[x.value.id]
            else:
                _fill(x, parts)
                out.append(x)
        if hasattr(s, name):
            setattr(s, name, out)


def _assigns(s: ast.stmt) -> bool:
    """Whether `s` only assigns local names."""
    match s:
        case ast.Assign(targets):
            return all(_is_name(t) for t in targets)
        case ast.AnnAssign(target, _, value):
            return isinstance(target, ast.Name) and value is not None
        case ast.Pass():
            return True
        case _:
            return False


def _is_name(t: ast.expr) -> bool:
    return isinstance(t, ast.Name) or (isinstance(t, ast.Tuple) and all(map(_is_name, t.elts)))


def _assigned(s: ast.stmt) -> set[str]:
    return {x.id for x in ast.walk(s) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}


def _lazily(test: ast.expr) -> ast.expr:
    """`test` with `and`, `or` and `not` as calls that also accept tensors."""
    match test:
        case ast.BoolOp(op, values):
            name = "both" if isinstance(op, ast.And) else "either"
            nothing = ast.arguments([], [], None, [], [], None, [])
            given = [ast.Lambda(nothing, _lazily(v)) for v in values]
            made: ast.expr = ast.Call(ast.Name(OWN + name, ast.Load()), list[ast.expr](given), [])
        case ast.UnaryOp(ast.Not(), operand):
            made = ast.Call(ast.Name(f"{OWN}opposite", ast.Load()), [_lazily(operand)], [])
        case _:
            return test
    return ast.copy_location(made, test)
