"""What all tests share: golden files, and the markers of tests that need a GPU and of those that a quick run leaves out."""

import ctypes
import ctypes.util
import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden"
FIRST, ONE_OF = 1, 16  # cases of a test that run, and one of how many of the others


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what the tests produce to tests/golden instead of comparing with it",
    )
    parser.addoption(
        "--wide",
        action="store_true",
        help="all cases of each test, and what is marked `wide`: further cases of what others prove, such as more models of one kind",
    )


def wide(*values: object) -> Any:
    """A parameter that is a further case of what the others prove: it runs with `--wide`."""
    return pytest.param(*values, marks=pytest.mark.wide)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "wide: a further case; it runs with --wide")
    config.addinivalue_line("markers", "gpu: needs a CUDA device; skipped where there is none")


def _no_gpu() -> str | None:
    """Why there is no CUDA device, asked of the driver itself (torch is slow to import)."""
    try:
        driver = ctypes.CDLL(ctypes.util.find_library("cuda") or "libcuda.so.1")
    except OSError:
        return "no CUDA driver on this machine"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return "the CUDA driver finds no device"
    return None if count.value else "no CUDA device on this machine"


def _further(items: list[pytest.Item]) -> set[pytest.Item]:
    """What only `--wide` runs: what is marked so, and of a test with many cases most of those behind the first ones, chosen by their names so that no
    parameter is left out altogether. A machine with a GPU runs all cases of its tests."""
    out = {item for item in items if item.get_closest_marker("wide")}
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item not in out and not item.get_closest_marker("gpu"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for each in cases.values():
        out |= {i for i in each[FIRST:] if zlib.crc32(i.nodeid.encode()) % ONE_OF}
    return out


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--wide"):
        further = _further(items)
        config.hook.pytest_deselected(items=[item for item in items if item in further])
        items[:] = [item for item in items if item not in further]
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and (reason := _no_gpu()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text): `text` is what tests/golden/`name` holds; `--update-golden` writes it."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"{path} is missing: run pytest with --update-golden"
        assert text == path.read_text(), f"{path} differs: if that is right, run --update-golden"

    return check
