"""What all tests share: golden files, and the markers of tests that need a GPU and of those that a quick run leaves out."""

import ctypes
import ctypes.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what the tests produce to tests/golden instead of comparing with it",
    )
    parser.addoption(
        "--wide",
        action="store_true",
        help="also what is marked `wide`: further cases of what others prove, such as more models of one kind",
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--wide"):
        further = [item for item in items if item.get_closest_marker("wide")]
        config.hook.pytest_deselected(items=further)
        items[:] = [item for item in items if item not in set(further)]
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
