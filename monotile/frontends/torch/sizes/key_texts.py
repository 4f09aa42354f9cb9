"""Finds the numbers whose texts may have a meaning in a model that formats a size: those in names and strings that the text could be compared with.

The model is traced with a few of them in place of the symbol's name (`symbolic_keys.py`). Candidates are keys and strings in the model, in the variables
around the line, and in its file (`{"16": ...}`, `mask_16`, `name == "16"`), if they match the rest of the f-string.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.nn import ModuleDict

from monotile.frontends.torch.tracing.restored_state import containers_of

_RUN = re.compile(r"\d+")
_MOST = 32  # of texts that are tried
_HELD = (dict, list, set, tuple, frozenset, str)
_SAYS = {"print", "debug", "info", "warning", "warn", "warning_once", "error", "log", "write"}


class Text(NamedTuple):
    """A string formatted from a size. expr: the size. low, high: its range. fits: a pattern of the f-string, else None. found: strings around the line.
    names: attribute and variable names that the string may equal."""

    expr: str
    low: int
    high: int
    fits: re.Pattern[str] | None
    found: frozenset[str]
    names: frozenset[str]


def text_of(x: torch.SymInt, frame: FrameType, node: ast.AST | None, tree: ast.AST) -> Text | None:
    """The text of `x` at `frame`; None if it is only printed. node: the expression in the frame's file, `tree`."""
    if node is not None and _is_said(node, tree):
        return None
    fits = _fits(node) if isinstance(node, ast.JoinedStr) else None
    near = [y for names in (frame.f_globals, frame.f_locals) for y in names.values() if type(y) in _HELD]  # fmt: skip
    found = {*_texts(near, containers_of(near)), *_constants(tree)}
    ends = x.node.shape_env.bound_sympy(x.node.expr)
    low, high = (int(min(max(e, -1), 2**62)) for e in (ends.lower, ends.upper))
    return Text(str(x.node.expr), low, high, fits, _numbered(found), _fitting(_names(tree), fits))


def candidates(texts: Iterable[Text], model: torch.nn.Module) -> Sequence[Mapping[str, int]] | None:
    """The numbers whose texts are to be tried, by size; None if there are too many."""
    held, attributes = _of_model(model)
    texts = [t._replace(found=t.found | held, names=t.names | _fitting(attributes, t.fits)) for t in texts]  # fmt: skip
    tries: list[dict[str, int]] = []
    for t in texts:
        own = {s for s in t.found if t.fits is None or t.fits.search(s)} | t.names
        numbers = {k for s in own for k in _numbers(s, t)}
        if t.fits is None:  # its shortest and its longest text
            numbers |= {max(t.low, 0), t.high}
        tries += [{t.expr: k} for k in sorted(numbers)]
    order = list(dict.fromkeys(t.expr for t in texts))
    ends = {t.expr: (t.low, t.high) for t in texts}
    for s in sorted({s for t in texts for s in t.found | t.names}):
        runs = [*map(int, _RUN.findall(s))]
        if len(order) > 1 and len(runs) >= len(order):
            pairs = dict(zip(order, runs, strict=False))
            tries += [pairs] if all(ends[e][0] <= k <= ends[e][1] for e, k in pairs.items()) else []
    unique = list({tuple(x.items()): x for x in tries}.values())
    return unique if len(unique) <= _MOST else None


def _numbers(text: str, of: Text) -> Iterator[int]:
    """The numbers in a text that the size may equal, or that are a prefix of one that it cannot equal."""
    for run in _RUN.findall(text):
        while run and int(run) > of.high:
            run = run[:-1]
        if run and int(run) >= of.low:
            yield int(run)


def _fits(node: ast.JoinedStr) -> re.Pattern[str] | None:
    """A pattern of the f-string's text; None if it has no constant parts."""
    words = [re.escape(str(x.value)) if isinstance(x, ast.Constant) else ".*" for x in node.values]
    return re.compile("".join(words), re.DOTALL) if any(w != ".*" for w in words) else None


def _numbered(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(t for t in texts if _RUN.search(t))


def _fitting(names: Iterable[str], fits: re.Pattern[str] | None) -> frozenset[str]:
    """The names that the text of an f-string may equal."""
    return _numbered(n for n in names if fits is not None and fits.fullmatch(n))


def _is_said(node: ast.AST, tree: ast.AST) -> bool:
    """Whether `node` is in a statement that prints or logs."""
    for said in ast.walk(tree):
        match said:
            case ast.Expr(ast.Call(ast.Name(name) | ast.Attribute(_, name))) if name in _SAYS:
                if any(x is node for x in ast.walk(said)):
                    return True
            case _:
                pass
    return False


def _texts(texts: Iterable[Any], containers: Iterable[Any]) -> Iterator[str]:
    """Strings by themselves and in containers: keys, items and values."""
    yield from (x for x in texts if isinstance(x, str))
    for x in containers:
        both = (*x, *x.values()) if isinstance(x, dict) else x
        yield from (y for y in both if isinstance(y, str))


def _constants(tree: ast.AST) -> Iterator[str]:
    """The string literals of a file, except for docstrings."""
    about = {id(x.value) for x in ast.walk(tree) if isinstance(x, ast.Expr)}
    for x in ast.walk(tree):
        if isinstance(x, ast.Constant) and isinstance(x.value, str) and id(x) not in about:
            yield x.value


def _names(tree: ast.AST) -> set[str]:
    names = (getattr(x, n, None) for x in ast.walk(tree) for n in ("name", "attr", "id", "arg"))
    return {x for x in names if isinstance(x, str)}


def _of_model(model: torch.nn.Module) -> tuple[frozenset[str], frozenset[str]]:
    """The strings in a model, and the names of its attributes."""
    named: dict[int, Any] = {}
    for m in model.modules():
        named |= {id(x): x for x in (vars(m), m._parameters, m._buffers)}  # pyright: ignore[reportPrivateUsage]
        if not isinstance(m, ModuleDict):  # a list's names are positions
            named[id(m._modules)] = m._modules  # pyright: ignore[reportPrivateUsage]
    values = [y for x in named.values() for y in x.values() if isinstance(y, str)]
    held = _texts([], (x for x in containers_of([model]) if id(x) not in named))
    attributes = {str(k) for x in named.values() for k in x} | {n for m in model.modules() for n in dir(type(m))}  # fmt: skip
    return _numbered([*values, *held]), _numbered(attributes)
