"""Importing the package does nothing."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import monotile

ROOT = Path(__file__).resolve().parents[1]


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_importing_does_nothing_else() -> None:
    code = """
import logging, os, sys, warnings
before = set(sys.modules), dict(os.environ), list(logging.root.handlers), list(warnings.filters)
import monotile
new = set(sys.modules) - before[0]
assert dict(os.environ) == before[1]
assert list(logging.root.handlers) == before[2]
assert list(warnings.filters) == before[3]
assert {n for n in new if n.startswith("monotile")} == {"monotile"}, new
assert not {n.partition(".")[0] for n in new} & {"torch", "numpy", "cuda", "click", "rich", "msgspec"}, new
"""
    python(code)


def test_every_name_is_there() -> None:
    for name in monotile.__all__:
        assert getattr(monotile, name) is not None
    assert set(monotile.__all__) <= set(dir(monotile))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = monotile.nothing


def test_compile_is_the_function_whatever_was_imported_first() -> None:
    code = "import monotile, monotile.compile, sys; print(callable(monotile.compile), 'torch' in sys.modules)"
    assert python(code) == "True True"
    assert python("from monotile import compile; print(compile.__module__)") == "monotile.compile"


def test_the_oldest_releases() -> None:
    oldest = runpy.run_path(str(ROOT / ".ci" / "oldest.py"))["oldest"]()
    (torch,) = re.findall(r"PyTorch ([\d.]+) or later", (ROOT / "README.md").read_text())
    assert oldest[0] == f"torch=={torch}"
    assert all(re.fullmatch(r"[\w-]+==[\d.]+(\.\*)?", x) for x in oldest), "each is one release"
