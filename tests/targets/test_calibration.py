"""Measured figures: judged, kept, read again, and used by detection."""

import math
from pathlib import Path

import msgspec
import pytest

from monotile.config import Options
from monotile.targets import calibration
from monotile.targets.calibration import Machine, Measured, flat, judge, keep, kept, replaced, reset
from monotile.targets.cpu.detect import machine as this_cpu
from monotile.targets.cuda import detect
from monotile.targets.cuda.calibrate.measure import latency
from monotile.targets.cuda.devices import machine_of
from monotile.targets.cuda.target import GPUS
from monotile.targets.detect import detect_target
from monotile.targets.timing import timing
from tests.targets.test_devices import H100, H200

NOW = "2026-01-02T03:04:05+00:00"
MACHINE = Machine(name="A GPU (80 GB)", identity={"workers": 7}, shipped={"a": 2.0, "b.c": 4.0}, source="")  # fmt: skip


def test_a_figure_that_is_far_off_is_refused() -> None:
    measured = {
        "a": Measured(7.9),
        "b.c": Measured(0.9),
        "other": Measured(1.0),
    }
    good, low, other = judge(MACHINE.shipped, measured)
    assert (good.old, good.new, good.why_not) == (2.0, 7.9, "")
    assert low.why_not == "it is 4.4 times off"
    assert math.isnan(other.old)
    assert other.why_not == "no model asks for it"
    assert judge(MACHINE.shipped, {"a": Measured(2.0, "shaky")})[0].why_not == "shaky"
    for wrong in (0.0, -1.0, math.nan, math.inf):
        assert judge(MACHINE.shipped, {"a": Measured(wrong)})[0].why_not


def test_repeats_that_do_not_agree() -> None:
    assert timing([1.0, 1.01, 0.99, 1.02, 9.0, 1.0]).steady
    assert timing([1.0, 1.01, 0.99, 1.02, 9.0, 1.0]).seconds == pytest.approx(1.005)
    assert not timing([1.0, 2.0, 3.0, 4.0]).steady


def test_kept_and_removed(tmp_path: Path) -> None:
    options = Options(cache_dir=str(tmp_path))
    assert kept(MACHINE, options) is None
    readings = judge(MACHINE.shipped, {"a": Measured(3.0), "b.c": Measured(0.1)})
    path = keep(MACHINE, readings, NOW, options)
    assert path == tmp_path / "figures" / "a-gpu-80-gb.json"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    found = kept(MACHINE, options)
    assert found is not None
    assert (found.figures, found.when) == ({"a": 3.0}, NOW)
    assert reset(MACHINE, options)
    assert not reset(MACHINE, options)
    assert kept(MACHINE, options) is None


def test_what_is_kept_of_another_machine_or_version_is_not_used(tmp_path: Path) -> None:
    options = Options(cache_dir=str(tmp_path))
    path = keep(MACHINE, judge(MACHINE.shipped, {"a": Measured(3.0)}), NOW, options)
    assert kept(msgspec.structs.replace(MACHINE, identity={"workers": 8}), options) is None
    renamed = kept(msgspec.structs.replace(MACHINE, shipped={"b.c": 4.0}), options)
    assert renamed is not None
    assert renamed.figures == {}
    farther = kept(msgspec.structs.replace(MACHINE, shipped={"a": 20.0}), options)
    assert farther is not None
    assert farther.figures == {}
    path.write_text("{")
    assert kept(MACHINE, options) is None


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "figures").write_text("in the way")
    with pytest.raises(OSError, match="figures"):
        keep(MACHINE, (), NOW, Options(cache_dir=str(tmp_path)))


@pytest.mark.parametrize("name", GPUS)
def test_dotted_names(name: str) -> None:
    gpu = GPUS[name]
    numbers = flat(gpu)
    assert numbers["flops.fma"] == gpu.flops["fma"]
    assert numbers["model.common.kept"] == gpu.model.common.kept
    assert replaced(gpu, numbers) == gpu
    doubled = replaced(gpu, {n: 2 * v for n, v in numbers.items()})
    assert flat(doubled) == {n: 2 * v for n, v in numbers.items()}
    assert replaced(gpu, {}) is gpu


def test_detection_uses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "current_device", lambda: H200)
    options = Options(cache_dir=str(tmp_path))
    before = detect_target("cuda", options)
    machine = machine_of(H200)
    measured = {"dram_bandwidth": Measured(4.2e12), "model.matmul.warps.path": Measured(1.5)}
    keep(machine, judge(machine.shipped, measured), NOW, options)
    after = detect_target("cuda", options)
    assert after == detect_target("auto", options)
    assert (after.dram_bandwidth, after.model.matmul.warps.path) == (4.2e12, 1.5)  # type: ignore[union-attr]
    assert after.barrier_seconds == before.barrier_seconds
    assert detect_target("cuda:h200", options) == before
    assert detect_target("cuda", Options(cache_dir=str(tmp_path / "other"))) == before
    monkeypatch.setattr(detect, "current_device", lambda: H100)
    assert detect_target("cuda", options) == GPUS["h100"].target


def test_the_cpu_uses_them(tmp_path: Path) -> None:
    options, machine = Options(cache_dir=str(tmp_path)), this_cpu()
    keep(machine, judge(machine.shipped, {"worker_flops.fma": Measured(60e9)}), NOW, options)
    found = detect_target("cpu", options)
    assert found.flops["fma"] == 60e9 * found.workers


def test_latency_is_scaled_where_its_probe_is_known() -> None:
    chase = Measured(3e-7)
    unknown = latency(chase, msgspec.structs.replace(GPUS["h100"], chase_seconds=None))
    assert unknown["latency_seconds"].why_not
    known = latency(chase, msgspec.structs.replace(GPUS["h100"], chase_seconds=2e-7))
    assert known["latency_seconds"].value == pytest.approx(0.9e-6)
    assert not known["latency_seconds"].why_not


def test_the_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(cache_dir=str(tmp_path))
    keep(MACHINE, judge(MACHINE.shipped, {"a": Measured(3.0)}), NOW, options)

    def fail(_path: Path, _content: bytes) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(calibration, "write_atomically", fail)
    with pytest.raises(OSError, match="disk full"):
        keep(MACHINE, judge(MACHINE.shipped, {"a": Measured(2.5)}), NOW, options)
    found = kept(MACHINE, options)
    assert found is not None
    assert found.figures == {"a": 3.0}
