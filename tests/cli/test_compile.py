"""The commands that compile, on the smallest example."""

import json
import re
from pathlib import Path

import pytest
import torch

import monotile
from monotile.kernels.registry import read_plan
from tests.cli.test_cli import invoke

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def test_run_checks_and_times() -> None:
    code, out = invoke("run", "mmoe", "--target", "cpu", "--seconds", "0.05")
    assert code == 0, out
    assert re.search(
        r"^error +\d\.\d\de-\d\d of the largest value of PyTorch in float64", out, re.M
    )
    assert re.search(r"^time +[\d.]+ (us|ms) per call", out, re.M)


def test_compile_says_what_came_out_and_saves_it(tmp_path: Path) -> None:
    path = tmp_path / "mmoe.monotile"
    code, out = invoke("compile", "mmoe", "--target", "cpu", "--workers", "1", "-o", str(path))
    assert code == 0, out
    assert re.search(r"^kernels +1$", out, re.M)
    assert "1 workers" in out
    fast = monotile.load(path)
    with torch.no_grad():
        found = fast(torch.randn(1, 499))
    assert [tuple(x.shape) for x in found] == [(1, 2), (1, 2)]

    code, plan = invoke("inspect", str(path))
    assert code == 0
    assert read_plan(plan) == fast.plan
    assert json.loads(plan)["launch"]["workers"] == 1
    assert fast.source in invoke("inspect", str(path), "--show", "source")[1]
    assert "stage_" in invoke("inspect", str(path), "--show", "stages")[1]


def test_every_step_can_be_dumped(tmp_path: Path) -> None:
    code, out = invoke("compile", "mmoe", "--target", "cpu", "--dump", str(tmp_path))
    assert code == 0, out
    names = [p.name for p in sorted(tmp_path.iterdir())]
    assert names[0].endswith("capture.txt")
    assert names[-1].endswith("source.c")
    assert any(name.endswith("plan.json") for name in names)


@no_gpu
def test_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    path = tmp_path / "mmoe.monotile"
    code, out = invoke("compile", "mmoe", "--target", "cuda:sm_80", "-o", str(path))
    assert code == 0, out
    assert "NVRTC" in out
    assert ".target sm_80" in invoke("inspect", str(path), "--show", "ptx")[1]
    code, out = invoke("run", "mmoe", "--target", "cuda:sm_80")
    assert code == 1
    assert "which this machine cannot run" in out
    code, out = invoke("run", "mmoe", "--target", "cuda")
    assert code == 1
    assert 'target="cpu"' in out
