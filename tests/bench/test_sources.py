"""What bench.sources says of two sources, and of one network twice."""

import json
from pathlib import Path

import pytest

from bench import roundtrip, sources
from bench.c_text import functions, renamed, structure
from bench.networks import NETWORKS, QUICK, options
from bench.zoo import MODELS
from bench.zoo.small import SMALL

BEFORE = """#include "cuda/one.cuh"  // a comment
static void stage_y(const float* x_1, int n2) {
  x_1[0] = mt_exp(n2 * 0x1.8p+3f) + "a // b"[0];
}
"""
AFTER = """/* another */
#include "cuda/two.cuh"
static void y(const float* x, int n) { x[0] = mt_exp(n * 0x1.8p+3f)
  + "a // b"[0]; }
"""


def test_structure_is_blind_to_names_and_layout() -> None:
    assert structure(BEFORE) == structure(AFTER)
    assert renamed(BEFORE, AFTER) == {'"cuda/one.cuh"': '"cuda/two.cuh"', "stage_y": "y", "x_1": "x", "n2": "n"}  # fmt: skip
    assert functions(BEFORE) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [("0x1.8p+3f", "0x1.8p-3f"), ("float", "double"), ("a // b", "a // c"), ("(n2 *", "(x_1 *"), ("[0] =", "[1] =")],
)  # fmt: skip
def test_structure_sees_all_else(old: str, new: str) -> None:
    assert old in BEFORE
    assert structure(BEFORE) != structure(BEFORE.replace(old, new))


def test_networks() -> None:
    assert set(QUICK) <= set(NETWORKS)
    assert len(set(NETWORKS)) == len(NETWORKS)
    assert {text.partition(":")[0] for text in NETWORKS} == {*MODELS, *SMALL}
    assert options("lstm:float32:layers=3:roll=False") == {"roll": False}


@pytest.mark.wide
def test_a_record_and_what_differs_from_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    file, texts, network = tmp_path / "found.json", tmp_path / "texts", "mmoe:float16"
    sources.record(file, [network], ["cpu", "cuda:sm_90a"], texts)
    assert sources.compare(file, [network], sources.TARGETS, None, None)
    assert "sources: 2 as they were\n" in capsys.readouterr().out
    content = json.loads(file.read_text())
    content["sources"][network]["cpu"]["structure"] = "another"
    content["sources"][network]["cuda:sm_90a"]["exact"] = "another"
    file.write_text(json.dumps(content))
    path = sources.place(texts, network, "cuda:sm_90a")
    path.write_text(path.read_text().replace("stage_", "phase_"))
    assert not sources.compare(file, [network], sources.TARGETS, tmp_path / "now", None)
    out = capsys.readouterr().out
    assert "name phase_" in out
    assert "sources: 1 differ, 1 other names alone\n" in out
    assert sources.place(tmp_path / "now", network, "cpu").exists()


@pytest.mark.wide
def test_a_round_trip(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert sources.roundtrip(["mmoe:float16"], ["cpu", "cuda:sm_90a"])
    assert "round trips: 2 the same, " in capsys.readouterr().out
    monkeypatch.setattr(roundtrip, "to_json", lambda _: "[]")
    assert not sources.roundtrip(["mmoe:float16"], ["cpu"])
    out = capsys.readouterr().out
    assert "mmoe:float16 cpu: CHOICES cannot be recorded or replayed, ChoiceError" in out
    assert "round trips: 1 differ, " in out


def test_the_device_headers() -> None:
    assert {"cpu/device/math.h", "cuda/device/monotile.cuh"} <= sources.device().keys()
