"""The commands use a cache of their own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.getbasetemp() / "monotile-cache"
    monkeypatch.setenv("MONOTILE_CACHE_DIR", str(folder))
    return folder
