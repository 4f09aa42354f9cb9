"""monotile calibrate, with made-up measurements."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from monotile.cli.main import main
from monotile.config import Options
from monotile.runtime import doctor
from monotile.targets.calibration import Measured
from monotile.targets.detect import detect_target
from monotile.targets.registry import BACKENDS

MEASURED = {
    "dram_bandwidth": Measured(30e9),
    "worker_bandwidth": Measured(900e9),
    "barrier_seconds": Measured(1e-6, "repeats do not agree"),
}


def invoke(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(main, ["calibrate", *arguments])
    return found.exit_code, found.output


@pytest.fixture
def measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, Measured]], None]:
    monkeypatch.setenv("MONOTILE_CACHE_DIR", str(tmp_path))

    def set_(found: dict[str, Measured]) -> None:
        cpu = replace(BACKENDS["cpu"], measure=lambda *_: found)
        monkeypatch.setitem(BACKENDS, "cpu", cpu)

    set_(MEASURED)
    return set_


@pytest.mark.usefixtures("measuring")
def test_measured_shown_used_and_removed() -> None:
    before = detect_target("cpu", Options())
    code, out = invoke("--target", "cpu")
    assert code == 0
    assert "2e+10" in out
    assert "3e+10" in out
    assert "18.0 times off" in out
    assert "repeats do not agree" in out
    after = detect_target("cpu", Options())
    assert after.dram_bandwidth == 30e9
    assert after.worker_bandwidth == before.worker_bandwidth
    figures = [f.words for f in doctor.examine() if f.subject == "figures"]
    assert any("1 as measured here" in words for words in figures)
    code, out = invoke("--target", "cpu", "--show")
    assert code == 0
    assert "dram_bandwidth" in out
    assert "worker_bandwidth" not in out
    assert "removed" in invoke("--target", "cpu", "--reset")[1]
    assert "there was nothing" in invoke("--target", "cpu", "--reset")[1]
    assert "nothing was measured" in invoke("--target", "cpu", "--show")[1]
    assert detect_target("cpu", Options()) == before


@pytest.mark.usefixtures("measuring")
def test_a_dry_run_keeps_nothing(tmp_path: Path) -> None:
    assert invoke("--target", "cpu", "--dry-run")[0] == 0
    assert not (tmp_path / "figures").exists()


def test_nothing_to_keep(measuring: Callable[[dict[str, Measured]], None], tmp_path: Path) -> None:
    measuring({"barrier_seconds": MEASURED["barrier_seconds"]})
    code, out = invoke("--target", "cpu")
    assert code == 1
    assert "when nothing else runs" in out
    assert not (tmp_path / "figures").exists()


@pytest.mark.usefixtures("measuring")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "figures").write_text("in the way")
    code, out = invoke("--target", "cpu")
    assert code == 1
    assert "cannot be kept" in out


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu() -> None:
    code, out = invoke("--target", "cuda")
    assert code == 1
    assert "PyTorch sees no GPU" in out
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "tpu"), 'unknown target "tpu"'),
        (("--target", "cuda:sm_90a"), 'unknown target "cuda:sm_90a"'),
        (("--show", "--reset"), "exclude each other"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str) -> None:
    code, out = invoke(*arguments)
    assert code != 0
    assert message in out


def test_a_real_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOTILE_CACHE_DIR", str(tmp_path))
    code, out = invoke("--target", "cpu", "--dry-run")
    assert code == 0
    for name in ("dram_bandwidth", "worker_bandwidth", "worker_flops.fma", "launch_seconds"):
        assert name in out
