"""Compiling leaves Python's collector as it was."""

import gc

import pytest

from monotile.runtime.collector import gc_paused


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_is_as_before_after_an_error(collects: bool) -> None:
    before = gc.isenabled()
    _set(collects)
    try:
        with pytest.raises(ValueError, match="in compiling"):
            _fail()
        assert gc.isenabled() is collects
    finally:
        _set(before)


def _fail() -> None:
    with gc_paused():
        assert not gc.isenabled()
        raise ValueError("in compiling")


def _set(collects: bool) -> None:
    if collects:
        gc.enable()
    else:
        gc.disable()
