"""Every Python block of README.md and docs/*.md runs, and prints what the page says it prints.

The ```python blocks of one page run in order in one namespace, in an empty folder; one that begins with `# file: NAME` is
written to that file instead. What a block prints is compared with the ```text block that follows it under
`<!-- output -->`; `--update-golden` writes it there instead.
"""

import contextlib
import io
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
EXAMPLES = [path for path in PAGES if "```python" in path.read_text()]
MARK = "<!-- output -->"
FILE = "# file: "


class Block(NamedTuple):
    """lines[start:end] of a page lie between its fences. output: the text block under the mark, if any."""

    start: int
    end: int
    output: tuple[int, int] | None


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links(page: Path) -> None:
    """Every file that a page links to, or names by its path in the package, is there."""
    text = page.read_text()
    linked = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    missing = [to for to in linked if not (page.parent / to).exists()]
    named = re.findall(r"`([\w/]+/\w+\.(?:py|cuh|cu|h))`", text)
    package = ROOT / "monotile"
    missing += [n for n in named if not any((base / n).exists() for base in (ROOT, package))]
    assert not missing


def blocks(lines: list[str]) -> list[Block]:
    """The Python blocks of a page, in order."""
    found: list[Block] = []
    at = 0
    while at < len(lines):
        if lines[at] != "```python":
            at += 1
            continue
        end = lines.index("```", at)
        rest = [k for k in range(end + 1, len(lines)) if lines[k]]
        output = None
        if len(rest) > 1 and lines[rest[0]] == MARK:
            assert lines[rest[1]] == "```text", f"line {rest[1] + 1}: a text block belongs here"
            output = (rest[1] + 1, lines.index("```", rest[1]))
        found.append(Block(at + 1, end, output))
        at = end
    return found


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda path: path.name)
def test_page(
    page: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = request.config.getoption("--update-golden")
    monkeypatch.setenv("MONOTILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    lines = page.read_text().split("\n")
    new: list[str] = []
    kept = 0
    for b in blocks(lines):
        # The page is the source file, so that line numbers, in errors and in what is printed, are its own.
        text = "\n" * b.start + "\n".join(lines[b.start : b.end])
        if lines[b.start].startswith(FILE):
            path = tmp_path / lines[b.start].removeprefix(FILE)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.lstrip("\n") + "\n")
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, str(page), "exec"), module.__dict__)
        found = printed.getvalue().rstrip("\n").split("\n")
        if b.output is None:
            assert found == [""], f"line {b.start}: a block prints, and the page does not say what"
        elif update:
            new += [*lines[kept : b.output[0]], *found]
            kept = b.output[1]
        else:
            assert found == lines[slice(*b.output)], (
                f"what line {b.start} prints has changed: if that is right, run --update-golden"
            )
    if update:
        page.write_text("\n".join([*new, *lines[kept:]]))
