"""Target names."""

import os

import pytest
import torch

from monotile.config import Options
from monotile.errors import TargetError
from monotile.plan.records import ON_CHIP
from monotile.targets.detect import detect_target

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def test_cpu() -> None:
    target = detect_target("cpu", Options())
    assert target.workers == len(os.sched_getaffinity(0))
    assert target.vector_bytes in (16, 32, 64)
    assert target.shared_bytes >= 1 << 15
    assert detect_target("cpu", Options(workers=1)).workers == 1


def test_more_workers_than_cores() -> None:
    with pytest.raises(TargetError, match=r"Options\(workers=100000\): all workers run at once"):
        detect_target("cpu", Options(workers=100000))


def test_an_architecture_by_name() -> None:
    assert detect_target("cuda:sm_80", Options()).workers == 108
    assert detect_target("cuda:sm_90", Options(workers=7)).workers == 7


@pytest.mark.parametrize("spec", ["tpu", "cuda:sm_20", "cuda:1", "CPU", ""])
def test_unknown_names(spec: str) -> None:
    with pytest.raises(TargetError):
        detect_target(spec, Options())


@no_gpu
def test_auto_without_a_gpu_is_the_cpu() -> None:
    assert detect_target("auto", Options()).kind == "cpu"


@no_gpu
def test_cuda_without_a_gpu_says_what_to_do() -> None:
    with pytest.raises(TargetError, match=r'target="cpu".*"cuda:sm_90a"'):
        detect_target("cuda", Options())


def test_a_profile_has_room_for_its_notes() -> None:
    plain = detect_target("cuda:sm_90a", Options())
    noting = detect_target("cuda:sm_90a", Options(profile=True))
    assert plain.shared_bytes - noting.shared_bytes == ON_CHIP
