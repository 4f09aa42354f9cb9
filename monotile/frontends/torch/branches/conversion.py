"""If-conversion of Python's `if` on a tensor (Allen et al., 1983): a function's code, recompiled so that both branches of some of its `if`s run.

    if (x > 1).any():
        x = self.large(x)

becomes, in short, with a `TracedIf` of `selection.py`:

    choice = TracedIf((x > 1).any(), line)
    kept = x
    if choice.then():       # both are true if the test is a tensor, otherwise one of them
        x = self.large(x)
    then, x = x, kept
    if choice.otherwise():
        pass
    x = choice.select(then, x)

A branch may change only local names and tensors. If a branch returns or continues a loop, the statements after the `if` are first moved into the other
branch (`early_exits.py`). Conditional expressions are converted as well.
"""

import ast
import copy
import inspect
import textwrap
from types import CodeType

from monotile.frontends.torch.branches.early_exits import (
    RESULT,
    beside,
    fold,
    without_continue,
    without_exits,
)
from monotile.frontends.torch.branches.named_expressions import without_named_expressions
from monotile.frontends.torch.branches.statements import (
    FLAG,
    OWN,
    Body,
    assigned,
    bound_by,
    guarded,
    like,
    lines_of,
    loads,
    may_run,
    read_before,
)
from monotile.frontends.torch.loops.conversion import (
    FOR_HELPERS,
    WHILE_HELPERS,
    convert_for,
    convert_while,
    hoist_comprehensions,
    local_names,
    ranges_counted,
)

_HELPERS = ("TracedIf", "logical_and", "logical_or", "logical_not", "iterate_nonzero", "MISSING")


def converted(
    old: CodeType, lines: frozenset[int], loops: frozenset[int] = frozenset()
) -> CodeType | None:
    """`old` with the `if`s and conditional expressions converted whose tests are at `lines`, and the loops of dynamic length whose heads are at `loops`;
    None if one of them cannot be converted."""
    tree, made = _function_of(old)
    if tree is None or made is None or _has(made, ast.Global, ast.Nonlocal):
        return None
    if not _Converter(made, lines, loops, local_names(made, frozenset(old.co_freevars))).all():
        return None
    made.decorator_list = []
    helpers_of = (("branches.selection", _HELPERS), ("loops.traced_loop", FOR_HELPERS), ("loops.traced_while", WHILE_HELPERS))  # fmt: skip
    for module, helpers in helpers_of:
        names = [ast.alias(n, OWN + n) for n in helpers]
        made.body.insert(0, ast.ImportFrom(f"monotile.frontends.torch.{module}", names, 0))
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


def exits_beside(old: CodeType, line: int) -> frozenset[int]:
    """The lines of the `if`s that have to be converted with the one at `line` of the function, since exits from its loop are in them."""
    made = _function_of(old)[1]
    return beside(made, line) if made else frozenset()


def _function_of(code: CodeType) -> tuple[ast.Module | None, ast.FunctionDef | None]:
    """The source of a function, and its definition there; None if unknown."""
    try:
        source, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(source)))
    except (OSError, TypeError, SyntaxError):
        return None, None
    ast.increment_lineno(tree, first - 1)
    (made,) = tree.body if len(tree.body) == 1 else (None,)
    return tree, made if isinstance(made, ast.FunctionDef) else None


def _has(node: ast.AST, *kinds: type[ast.AST]) -> bool:
    return any(isinstance(x, kinds) for x in ast.walk(node))


def _inside(made: ast.FunctionDef) -> list[ast.stmt]:
    """The nested functions, which may read its names whenever they are called."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    found = (x for s in made.body for x in ast.walk(s) if isinstance(x, kinds))
    return [ast.Expr(x) if isinstance(x, ast.Lambda) else x for x in found]


def _inner(codes: list[CodeType]) -> list[CodeType]:
    """The functions defined directly inside."""
    return [x for code in codes for x in code.co_consts if isinstance(x, CodeType)]


class _Converter:
    """Converts the function `made` in place, at `lines` and `loops`. names: its local names. found: the lines that were converted.
    possible: whether all branches may be run."""

    def __init__(
        self,
        made: ast.FunctionDef,
        lines: frozenset[int],
        loops: frozenset[int],
        names: frozenset[str],
    ) -> None:
        self.made, self.lines, self.loops, self.names = made, lines, loops, names
        self.count = 0
        self.found: set[int] = set()
        self.possible = True
        self.closed = frozenset(n for f in _inside(made) for n in loads(f))

    def all(self) -> bool:
        """Whether everything at `lines` is converted."""
        made = self.made
        made.body = without_named_expressions(made.body, self.lines)
        made.body = ranges_counted(made.body, self.lines, lambda: self.name("count"))
        without_exits(made, self.lines)
        made.body = self._statements(made.body, frozenset())
        expressions = _Expressions(self)
        made.body = [expressions.visit(s) for s in made.body]
        return self.possible and frozenset(self.found) == self.lines | self.loops

    def wanted(self, test: ast.expr) -> int | None:
        """The first of the lines that `test` spans; these count as found."""
        there = lines_of(test, self.lines)
        self.found.update(there)
        return min(there, default=None)

    def name(self, of: str = "choice") -> str:
        """A new name."""
        self.count += 1
        return f"{OWN}{of}{self.count}"

    def _statements(self, body: Body, after: frozenset[str]) -> Body:
        """after: names that may be read after `body`."""
        if self.loops:
            body = [x for s in body for x in hoist_comprehensions(s, self.loops, self.name("list"))]
        rests = [body[k + 1 :] for k in range(len(body))]
        behind = [read_before(rest) | (after - bound_by(rest)) for rest in rests]
        return [new for s, names in zip(body, behind, strict=True) for new in self._statement(s, names)]  # fmt: skip

    def _statement(self, s: ast.stmt, after: frozenset[str]) -> Body:
        if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return [s]
        test = s.test if isinstance(s, ast.If) and not _has(s.test, ast.NamedExpr) else None
        if isinstance(s, ast.If) and test and (line := self.wanted(test)) is not None:
            return self._traced_if(s, line, after)
        if isinstance(s, ast.For) and not s.orelse and (line := self.wanted(s.iter)) is not None:
            return self._nonzero_loop(s, line, after)
        if isinstance(s, ast.For) and not s.orelse and (there := lines_of(s.iter, self.loops)):
            self.found.update(there)
            return self._dynamic_for(s, after)
        if isinstance(s, ast.While) and not s.orelse and self._is_tensor_while(s):
            return self._tensor_while(s, after)
        if isinstance(s, (ast.For, ast.While)):
            after |= read_before([s])
            s.body = without_continue(s.body, self.lines)
        if isinstance(s, ast.Try):
            after |= loads(s).keys()
        for name in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(s, name, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                setattr(s, name, self._statements(inner, after))
        return [s]

    def _dynamic_for(self, s: ast.For, after: frozenset[str]) -> Body:
        """A loop of dynamic length."""
        s.body = without_continue(s.body, self.lines)
        inner = self._statements(copy.deepcopy(s.body), after | read_before([s]))
        return convert_for(s, self.name("loop"), inner, after, self.names, self.closed)

    def _is_tensor_while(self, s: ast.While) -> bool:
        """Whether its test is a tensor."""
        return not _has(s.test, ast.NamedExpr) and self.wanted(s.test) is not None

    def _tensor_while(self, s: ast.While, after: frozenset[str]) -> Body:
        s.body = without_continue(s.body, self.lines)
        behind = after | read_before([s])
        inner = self._statements(copy.deepcopy(s.body), behind)
        function = (self.names, self.closed)
        return convert_while(
            s, self.name("while"), _with_tensor_logic(s.test), inner, after, function
        )

    def _nonzero_loop(self, s: ast.For, line: int, after: frozenset[str]) -> Body:
        """A loop over nonzero positions, as a loop over all positions with an `if` (`nonzero_loops.py`)."""
        hit, row = (f"{self.name()}_{x}" for x in ("hit", "row"))
        body = fold(s.body, {ast.Continue: lambda _: []}, self.lines, anywhere=True) or s.body
        taken = ast.Assign([s.target], ast.Name(row, ast.Load()))
        inner = like(ast.If(ast.Name(hit, ast.Load()), [taken, *body], []), s.iter)
        after |= read_before([taken, *body])
        target = ast.Tuple([ast.Name(x, ast.Store()) for x in (hit, row)], ast.Store())
        given = ast.Call(ast.Name(f"{OWN}iterate_nonzero", ast.Load()), [s.iter], [])
        return [like(ast.For(target, given, self._traced_if(inner, line, after), []), s.iter)]

    def _traced_if(self, s: ast.If, line: int, after: frozenset[str]) -> Body:
        self.possible &= may_run([*s.body, *s.orelse])
        choice = self.name()
        names = sorted(assigned([*s.body, *s.orelse]))
        live = {*names} & (after | self.closed | {RESULT})
        ways = {
            way: self._statements(guarded(body, choice), after) or [ast.Pass()]
            for way, body in (("THEN", s.body), ("ELSE", s.orelse))
        }
        first = ast.Assign([ast.Name(choice, ast.Store())], _new_if(s.test, line))
        return [ast.copy_location(first, s.test), *_template(choice, names, ways, s.test, live)]


class _Expressions(ast.NodeTransformer):
    """Converts conditional expressions."""

    def __init__(self, convert: _Converter) -> None:
        self._convert = convert

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node if node.args.args else self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if _has(node, ast.NamedExpr, ast.Await, ast.Yield):
            return node
        if (line := self._convert.wanted(node.test)) is None:
            return node
        value = ast.Attribute(_new_if(node.test, line), "value", ast.Load())
        ways = [_function(x) for x in (node.body, node.orelse)]
        return ast.copy_location(ast.Call(value, ways, []), node)


def _function(value: ast.expr) -> ast.expr:
    nothing = ast.arguments([], [], None, [], [], None, [])
    return ast.copy_location(ast.Lambda(nothing, value), value)


def _new_if(test: ast.expr, line: int) -> ast.expr:
    """A new `selection.TracedIf`."""
    given = [_with_tensor_logic(test), ast.Constant(line)]
    made = ast.Call(ast.Name(f"{OWN}TracedIf", ast.Load()), given, [])
    return ast.copy_location(made, test)


def _with_tensor_logic(test: ast.expr) -> ast.expr:
    """`test` with `and`, `or` and `not` as calls that also accept tensors."""
    match test:
        case ast.BoolOp(op, values):
            name = "logical_and" if isinstance(op, ast.And) else "logical_or"
            given = [_function(_with_tensor_logic(v)) for v in values]
            made = ast.Call(ast.Name(OWN + name, ast.Load()), given, [])
        case ast.UnaryOp(ast.Not(), operand):
            made = ast.Call(
                ast.Name(f"{OWN}logical_not", ast.Load()), [_with_tensor_logic(operand)], []
            )
        case _:
            return test
    return ast.copy_location(made, test)


def _template(
    choice: str, names: list[str], ways: dict[str, Body], test: ast.expr, live: set[str]
) -> Body:
    """The converted `if`. names: assigned in a branch. live: those of them that are read after it."""
    kept, then, missing = f"{choice}_kept_", f"{choice}_then_", f"{OWN}MISSING"

    def value(n: str) -> str:
        return f"locals().get({n!r}, {missing})"

    def bound(n: str, to: str) -> list[str]:
        return [f"    {n} = {to}", f"    if {n} is {missing}:", f"        del {n}"]

    text = [f"if {choice}.undecided:", "    pass"]
    text += [f"    {kept}{n} = {value(n)}" for n in names]
    text += [f"if {choice}.then():", "    THEN", f"if {choice}.undecided:", "    pass"]
    text += [f"    {then}{n} = {value(n)}" for n in names if n in live]
    text += [line for n in names for line in bound(n, kept + n)]
    text += [f"if {choice}.otherwise():", "    ELSE", f"if {choice}.undecided:"]
    text += [f"    {choice}.end()"]
    for n in (n for n in names if n in live):
        how = "flag" if n.startswith(FLAG) else "select"
        text += bound(n, f"{choice}.{how}({then}{n}, {value(n)})")
    made = ast.parse("\n".join(text)).body
    for s in made:
        for node in ast.walk(s):
            if isinstance(node, (ast.expr, ast.stmt)):
                ast.copy_location(node, test)
        assert isinstance(s, ast.If)
        match s.body:
            case [ast.Expr(ast.Name(way))]:
                s.body = ways[way]
            case _:
                pass
    return made
