"""Takes assignments out of the tests of converted statements: `while (error := f(x)) > eps:` becomes

error = f(x)
while error > eps:
    ...
    error = f(x)    # also before each continue
"""

import ast
import copy

from monotile.frontends.torch.branches.statements import Body, like, lines_of

_LAZY = (ast.IfExp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def without_named_expressions(body: Body, lines: frozenset[int]) -> Body:
    """`body`, with the assignments within tests at `lines` before the tests, where each test makes all of them."""
    found = Body()
    for s in body:
        if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.append(s)
            continue
        for part in ("body", "orelse", "finalbody"):
            inner = getattr(s, part, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                setattr(s, part, without_named_expressions(inner, lines))
        if isinstance(s, (ast.If, ast.While)) and lines_of(s.test, lines):
            found += _assignments(s)
        found.append(s)
    return found


def _assignments(s: ast.If | ast.While) -> Body:
    """Those of the test of `s`, in which names take their place."""
    lazy = [x for y in ast.walk(s.test) if isinstance(y, _LAZY) for x in ast.walk(y)]
    lazy += [x for y in ast.walk(s.test) if isinstance(y, ast.BoolOp) for v in y.values[1:] for x in ast.walk(v)]  # fmt: skip
    if any(isinstance(x, ast.NamedExpr) for x in lazy):
        return []
    names = _Names()
    s.test = names.visit(s.test)
    if names.found and isinstance(s, ast.While):
        s.body = [*_Continues(names.found).inside(s.body), *copy.deepcopy(names.found)]
    return names.found


class _Names(ast.NodeTransformer):
    def __init__(self) -> None:
        self.found = Body()

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        self.generic_visit(node)
        assigned = ast.Assign([ast.Name(node.target.id, ast.Store())], node.value)
        self.found.append(like(assigned, node))
        return like(ast.Name(node.target.id, ast.Load()), node)


class _Continues(ast.NodeTransformer):
    """Puts `again` before each continue of a loop."""

    def __init__(self, again: Body) -> None:
        self._again = again

    def inside(self, body: Body) -> Body:
        found = [self.visit(s) for s in body]
        return [x for y in found for x in (y if isinstance(y, list) else [y])]

    def visit_Continue(self, node: ast.Continue) -> Body:
        return [*copy.deepcopy(self._again), node]

    def visit_For(self, node: ast.For) -> ast.AST:
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node
