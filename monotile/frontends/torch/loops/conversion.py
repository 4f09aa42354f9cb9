"""Source conversion of loops with a dynamic number of iterations: `for` loops (`traced_loop.py`), `while` loops (`traced_while.py`), and list
comprehensions.
"""

import ast
from collections.abc import Callable, Sequence

from monotile.frontends.torch.branches.statements import (
    OWN,
    Body,
    assigned,
    like,
    lines_of,
    loads,
    read_before,
)

_HEADS = ("len", "range", "zip", "enumerate", "reversed")
FOR_HELPERS = ("TracedLoop", "call_in_head")
WHILE_HELPERS = ("TracedWhile",)


class _HeadCalls(ast.NodeTransformer):
    """Replaces calls in the head of a loop by `call_in_head`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node.func:
            case ast.Name(name) if name in _HEADS:
                call = ast.Name(f"{OWN}call_in_head", ast.Load())
                return like(ast.Call(call, [node.func, *node.args], node.keywords), node)
            case _:
                return node


def convert_for(
    s: ast.For,
    loop: str,
    body: Body,
    after: frozenset[str],
    own: frozenset[str],
    closed: frozenset[str],
) -> Body:
    """The converted `for` loop `s`. loop: a new name. body: its converted body. after: names that may be read after it. own: the local names of its
    function; closed: those of them that nested functions read."""
    taken = ast.Assign([s.target], ast.Name(f"{loop}_item", ast.Load()))
    names, first = _names([taken, *s.body], [], after, own, closed)
    heads = (
        f"{OWN}TracedLoop(ITEMS, {names!r}, {first!r})",
        "more(locals())",
        f"TARGET = {loop}.item",
    )
    made = _loop_of(loop, names, heads, s.iter)
    match made:
        case [
            ast.Assign(value=ast.Call() as call),
            ast.With(body=[ast.While() as inner]),
            ast.If(),
        ]:
            call.args[0] = _HeadCalls().visit(s.iter)
            head = inner.body[1]
            assert isinstance(head, ast.Assign)
            head.targets = [s.target]
            inner.body[2:] = body
        case _:
            raise AssertionError
    return made


def ranges_counted(body: Body, lines: frozenset[int], name: Callable[[], str]) -> Body:
    """`body`, with `while` loops in place of its loops over ranges whose heads are at `lines`. name: makes a new name."""
    found = Body()
    for s in body:
        if not isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for part in ("body", "orelse", "finalbody"):
                inner = getattr(s, part, None)
                if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                    setattr(s, part, ranges_counted(inner, lines, name))
        counted = None
        if isinstance(s, ast.For) and not s.orelse and lines_of(s.iter, lines):
            counted = _counted_while(s, name())
        found += counted or [s]
    return found


def _counted_while(s: ast.For, count: str) -> Body | None:
    """`for k in range(n)` as a `while` loop, behind the assignments of its ends; None for other loops. count: a new name."""
    match s.iter:
        case ast.Call(ast.Name("range"), [stop], []):
            start, step = ast.Constant(0), 1
        case ast.Call(ast.Name("range"), [start, stop], []):
            step = 1
        case ast.Call(ast.Name("range"), [start, stop, ast.Constant(int() as step)], []) if step:
            pass
        case ast.Call(
            ast.Name("range"),
            [start, stop, ast.UnaryOp(ast.USub(), ast.Constant(int() as by))],
            [],
        ) if by:
            step = -by
        case _:
            return None
    text = f"{count}_end = END\n{count} = START\nwhile {count} {'<' if step > 0 else '>'} {count}_end:\n    TARGET = {count}\n    {count} = {count} + {step}"
    made = _parsed(text, s.iter)
    match made:
        case [ast.Assign() as end, ast.Assign() as begin, ast.While(body=[ast.Assign() as item, _]) as loop]:  # fmt: skip
            end.value, begin.value, item.targets = stop, start, [s.target]
            loop.body += s.body
        case _:
            raise AssertionError
    return made


def convert_while(
    s: ast.While, loop: str, test: ast.expr, body: Body, after: frozenset[str], function: tuple[frozenset[str], frozenset[str]],
) -> Body:  # fmt: skip
    """The converted `while` loop `s`. test, body: its converted test and body. function: `own` and `closed` of `convert_for`."""
    names, first = _names(s.body, [s.test], after, *function)
    heads = (
        f"{OWN}TracedWhile({names!r}, {first!r}, {s.test.lineno})",
        "more(locals(), TEST)",
        "pass",
    )
    made = _loop_of(loop, names, heads, s.test)
    match made:
        case [ast.Assign(), ast.With(body=[ast.While(test=ast.Call() as more) as inner]), ast.If()]:
            more.args[1] = test
            inner.body[2:] = body
        case _:
            raise AssertionError
    return made


def _names(
    body: Body, tests: list[ast.expr], after: frozenset[str], own: frozenset[str], closed: frozenset[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:  # fmt: skip
    """The names that a loop reads or defines, and those of them that an iteration may read before it binds them."""
    bound = assigned(body)
    asked: Body = [ast.Expr(x) for x in tests]
    first = read_before([*asked, *body]) & bound
    known = {n for x in (*asked, *body) for n in loads(x)} | closed | after
    read = {n for n in known - bound if n in own or n.startswith(OWN)}
    return tuple(sorted(read | (bound & (first | after | closed)))), tuple(sorted(first))


def _loop_of(loop: str, names: Sequence[str], heads: tuple[str, str, str], at: ast.expr) -> Body:
    """A converted loop without its body. heads: its constructor, the condition of an iteration, and the first statement of the body."""
    missing = f"{OWN}MISSING"
    back = [
        x
        for n in names
        for x in (
            f"{n} = {loop}.names.get({n!r}, {missing})",
            f"if {n} is {missing}:",
            f"    del {n}",
        )
    ]
    made, more, item = heads
    text = [
        f"{loop} = {made}",
        f"with {loop}:",
        f"    while {loop}.{more}:",
        f"        if {loop}.undecided:",
        "            pass",
        *(f"            {x}" for x in back),
        f"        {item}",
        "        BODY",
        f"if {loop}.undecided:",
        "    pass",
        *(f"    {x}" for x in back),
    ]
    return _parsed("\n".join(text), at)


def _parsed(text: str, at: ast.expr) -> Body:
    """Statements with the source location of `at`."""
    found = ast.parse(text).body
    for x in found:
        for node in ast.walk(x):
            if isinstance(node, (ast.expr, ast.stmt)):
                ast.copy_location(node, at)
    return found


def local_names(made: ast.FunctionDef, free: frozenset[str]) -> frozenset[str]:
    """The names that a function binds. free: its free variables."""
    of = made.args
    given = [*of.posonlyargs, *of.args, *of.kwonlyargs, *filter(None, (of.vararg, of.kwarg))]
    return frozenset({x.arg for x in given} | assigned(made.body)) - free


class _ComprehensionHoister(ast.NodeTransformer):
    """Takes the list comprehensions at `lines` out of a statement. loops: the equivalent loops."""

    def __init__(self, lines: frozenset[int], name: str) -> None:
        self.lines, self.name, self.loops = lines, name, Body()

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(ast.Name("tuple" | "list"), [ast.GeneratorExp() as inner], []):
                found = self.visit_ListComp(inner)
                return node if found is inner else found
            case _:
                return self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> ast.AST:
        (first, *more) = node.generators
        if more or first.ifs or not lines_of(first.iter, self.lines):
            return node
        made = f"{self.name}_{len(self.loops)}"
        targets = {n: f"{made}_{n}" for n in assigned([ast.Assign([first.target], first.iter)])}
        for x in (*ast.walk(first.target), *ast.walk(node.elt)):
            if isinstance(x, ast.Name) and x.id in targets:
                x.id = targets[x.id]
        begin = ast.Assign([ast.Name(made, ast.Store())], ast.List([], ast.Load()))
        append = ast.Attribute(ast.Name(made, ast.Load()), "append", ast.Load())
        body: Body = [ast.Expr(ast.Call(append, [node.elt], []))]
        self.loops += [like(begin, node), like(ast.For(first.target, first.iter, body, []), node)]
        return like(ast.Name(made, ast.Load()), node)


def hoist_comprehensions(s: ast.stmt, lines: frozenset[int], name: str) -> Body:
    """`s`, preceded by loops that replace its list comprehensions. The rest of `s` is evaluated after them."""
    if not lines or not isinstance(
        s, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)
    ):
        return [s]
    found = _ComprehensionHoister(lines, name)
    made = found.visit(s)
    return [*found.loops, made]
