"""Whether a call that is a statement in a branch (`statements.py`) has side effects, judged by the source of the called function."""

import ast
import inspect
import logging
import textwrap
import warnings
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch

_OUTPUT = (print, warnings.warn)


def changes_tensors_only(called: Callable[..., Any]) -> bool:
    """Whether the only side effects of a call are in-place updates of tensors, or output: then both branches may make it. The function may contain
    assignments to its own names, in-place methods of tensors, and branches and loops of these."""
    if isinstance(called, MethodType) and isinstance(called.__self__, logging.Logger):
        return True
    if called in _OUTPUT:
        return True
    function = inspect.unwrap(called.__func__ if isinstance(called, MethodType) else called)
    if not isinstance(function, FunctionType):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function.__code__)))
    except (OSError, TypeError, SyntaxError):
        return False
    (made,) = tree.body if len(tree.body) == 1 else (None,)
    return isinstance(made, ast.FunctionDef) and all(map(_is_local, made.body))


def _is_local(s: ast.stmt) -> bool:
    match s:
        case ast.Pass() | ast.Assert() | ast.Expr(ast.Constant()) | ast.Break() | ast.Continue():
            return True
        case ast.Return():  # the result of the call is not used
            return not any(isinstance(x, ast.Call) for x in ast.walk(s))
        case ast.Assign(targets):
            return all(map(_is_name, targets))
        case ast.AnnAssign(target, _, value):
            return isinstance(target, ast.Name) and value is not None
        case ast.Expr(ast.Call(ast.Attribute(_, name))):
            return name.endswith("_") and hasattr(torch.Tensor, name)
        case ast.If(_, body, orelse):
            return all(map(_is_local, [*body, *orelse]))
        case ast.For(target, _, body, orelse):
            return _is_name(target) and all(map(_is_local, [*body, *orelse]))
        case ast.With(items, body):
            names = [x.optional_vars for x in items if x.optional_vars is not None]
            return all(map(_is_name, names)) and all(map(_is_local, body))
        case _:
            return False


def _is_name(t: ast.expr) -> bool:
    if isinstance(t, (ast.Tuple, ast.List)):
        return all(map(_is_name, t.elts))
    return isinstance(t, ast.Name)
