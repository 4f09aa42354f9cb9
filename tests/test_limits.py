"""Limits of size: short files and functions, few parameters, imports at the top and in no circle, one folder a kernel family."""

import ast
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from monotile.kernels.registry import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
LINES, LENGTH, PARAMETERS = 400, 60, 7  # of a file, of a function, of its signature

Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """A file of ours. name: from the root on."""

    name: str
    text: str
    tree: ast.Module


class Function(NamedTuple):
    """name: with the classes and functions that it stands in, by dots."""

    source: Source
    name: str
    node: Definition

    @property
    def key(self) -> str:
        return f"{self.source.name}:{self.name}"


def read(*folders: str) -> list[Source]:
    paths = [p for folder in folders for p in sorted((ROOT / folder).rglob("*.py"))]
    return [Source(str(p.relative_to(ROOT)), text := p.read_text(), ast.parse(text)) for p in paths]


PACKAGE, BENCH, TESTS = read("monotile"), read("bench"), read("tests")


def functions(source: Source) -> Iterator[Function]:
    def within(node: ast.AST, names: tuple[str, ...]) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Definition | ast.ClassDef):
                inner = (*names, child.name)
                if isinstance(child, Definition):
                    yield Function(source, ".".join(inner), child)
                yield from within(child, inner)
            else:
                yield from within(child, names)

    return within(source.tree, ())


def parameters(f: Definition) -> int:
    """self not counted."""
    a = f.args
    names = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def outer_signature(f: Function) -> bool:
    """Whether the signature is someone else's: of a command line, or of an operator, in a table of these (or made for one)."""
    if any("click." in ast.unparse(d) for d in f.node.decorator_list):
        return True
    rows = [
        ast.unparse(value)
        for node in f.source.tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict)
        for value in node.value.values
    ]
    named = {
        name for row in rows for name in ast.walk(ast.parse(row)) if isinstance(name, ast.Name)
    }
    return f.name.partition(".")[0] in {n.id for n in named}


def test_files_are_short() -> None:
    sizes = {s.name: s.text.count("\n") for s in (*PACKAGE, *BENCH, *TESTS)}
    assert not {name: size for name, size in sizes.items() if size > LINES}


def test_functions_are_short() -> None:
    sizes = {
        f.key: (f.node.end_lineno or 0) - f.node.lineno + 1
        for s in (*PACKAGE, *BENCH)
        for f in functions(s)
    }
    assert not {name: size for name, size in sizes.items() if size > LENGTH}


def test_signatures_are_short() -> None:
    counts = {
        f.key: parameters(f.node)
        for s in (*PACKAGE, *BENCH, *TESTS)
        for f in functions(s)
        if not outer_signature(f)
    }
    assert not {name: count for name, count in counts.items() if count > PARAMETERS}


def test_imports_are_at_the_top() -> None:
    inside = [
        f"{f.source.name}:{node.lineno}"
        for s in (*PACKAGE, *BENCH, *TESTS)
        for f in functions(s)
        for node in ast.walk(f.node)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not inside


def module_of(source: Source) -> str:
    return source.name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def imported(tree: ast.Module) -> Iterator[str]:
    """Names that may be modules: of imports, and of `importlib.import_module` with a literal, wherever it stands."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (n.name for n in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{n.name}" for n in names)
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(str(name))]):
                yield name
            case _:
                pass


def test_imports_form_no_circle() -> None:
    """The package itself is left out: it names all public modules and loads each at its first use."""
    modules = {module_of(s): s for s in PACKAGE if s.name != "monotile/__init__.py"}
    todo = {m: {n for n in imported(s.tree) if n in modules} - {m} for m, s in modules.items()}
    while ready := {m for m, needs in todo.items() if not needs & todo.keys()}:
        todo = {m: needs for m, needs in todo.items() if m not in ready}
    assert not todo, "each of these imports another one"


def folders_of_families() -> Sequence[str]:
    return sorted(p.parent.name for p in (ROOT / "monotile" / "kernels").glob("*/family.py"))


def test_every_family_is_registered() -> None:
    assert folders_of_families() == sorted(f.name for f in FAMILIES)


def test_no_family_may_import_another() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (kept_apart,) = [c for c in contracts["contracts"] if c["type"] == "independence"]
    listed = [m.removeprefix("monotile.kernels.") for m in kept_apart["modules"]]
    assert folders_of_families() == sorted(listed)
