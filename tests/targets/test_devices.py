"""Which figures a GPU gets: by its own name and sizes, else the nearest of its architecture, resized."""

import msgspec
import pytest

from monotile.config import Options
from monotile.errors import TargetError
from monotile.targets.cuda import detect
from monotile.targets.cuda.devices import Device, architecture_of, figures_of
from monotile.targets.cuda.target import GPUS
from monotile.targets.detect import detect_target

GIB = 1 << 30
H100 = Device(
    name="NVIDIA H100 80GB HBM3", architecture="sm_90a", workers=132, l2_bytes=50 << 20,
    memory_bytes=85_017_755_648, shared_bytes=232448,
)  # fmt: skip
H200 = Device(
    name="NVIDIA H200", architecture="sm_90a", workers=132, l2_bytes=60 << 20,
    memory_bytes=150_110_011_392, shared_bytes=232448,
)  # fmt: skip


@pytest.mark.parametrize(("device", "name"), [(H100, "h100"), (H200, "h200")])
def test_by_name_and_sizes(device: Device, name: str) -> None:
    assert figures_of(device) == (GPUS[name], True)


@pytest.mark.parametrize(
    "change", [{"name": "Another H200"}, {"l2_bytes": 50 << 20}, {"workers": 120}, {"memory_bytes": 100 * GIB}]
)  # fmt: skip
def test_neither_alone_will_do(change: dict[str, object]) -> None:
    assert not figures_of(msgspec.structs.replace(H200, **change))[1]


def test_the_nearest_gets_the_devices_sizes() -> None:
    pcie = msgspec.structs.replace(H100, name="NVIDIA H100 PCIe", workers=114)
    found, own = figures_of(pcie)
    assert not own
    assert (found.name, found.workers, found.dram_bandwidth) == ("h100", 114, 3.09e12)
    assert found.flops["fma"] / 114 == pytest.approx(67e12 / 132)
    large = msgspec.structs.replace(H200, name="NVIDIA GH200 144G HBM3e")
    assert figures_of(large)[0].name == "h200"
    a100 = Device(
        name="NVIDIA A100-SXM4-80GB", architecture="sm_80", workers=108, l2_bytes=40 << 20,
        memory_bytes=80 * GIB, shared_bytes=166912,
    )  # fmt: skip
    assert figures_of(a100)[0].target == GPUS["a100"].target


def test_architectures() -> None:
    assert architecture_of(9, 0) == "sm_90a"
    assert architecture_of(8, 7) == "sm_86"
    assert architecture_of(12, 0) == "sm_120"


@pytest.fixture
def at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "current_device", lambda: H200)


@pytest.mark.usefixtures("at_hand")
def test_the_machine_at_hand() -> None:
    here = detect_target("cuda", Options())
    assert detect_target("auto", Options()) == here == GPUS["h200"].target
    assert detect_target(here.name, Options()) == here
    assert detect_target("cuda:sm_90a", Options()) == GPUS["h100"].target
    with pytest.raises(TargetError, match="there are 132 multiprocessors"):
        detect_target("cuda", Options(workers=133))


def test_a_gpu_that_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    old = msgspec.structs.replace(H100, name="Tesla V100", architecture="sm_70")
    monkeypatch.setattr(detect, "current_device", lambda: old)
    with pytest.raises(TargetError, match=r"Tesla V100\) is sm_70"):
        detect_target("cuda", Options())
    assert detect_target("auto", Options()).name == "cpu"


def test_names() -> None:
    assert detect_target("cuda:h200", Options()) == GPUS["h200"].target
    assert detect_target("cuda:h100", Options()) == detect_target("cuda:sm_90a", Options())
    with pytest.raises(TargetError, match=r'unknown GPU "b300".*"cuda:h200"'):
        detect_target("cuda:b300", Options())
