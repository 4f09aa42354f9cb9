"""A word about what takes long, and silence about what does not."""

import time

import pytest

from monotile.runtime import progress


def test_quick_steps_are_silent(capfd: pytest.CaptureFixture[str]) -> None:
    with progress.step("compiling", shown=True):
        pass
    with progress.step("compiling", shown=False):
        pass
    assert capfd.readouterr() == ("", "")


def test_long_steps_speak_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", 0.01)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.step("compiling", shown=True):
        time.sleep(0.3)
    out, err = capfd.readouterr()
    assert out == ""
    assert "compiling" in err


def test_errors_pass_through() -> None:
    with pytest.raises(ValueError, match="mine"), progress.step("compiling", shown=True):
        raise ValueError("mine")
