"""What a launch is given, against a driver made for the test: no GPU needed. `tests/gpu` runs the real one."""

import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from monotile.config import Options
from monotile.errors import IndexOutOfRangeError, InternalError, TargetError
from monotile.plan.launch import Launch
from monotile.targets.binary import Binary
from monotile.targets.cpu import build as build_cpu
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda import launch as cuda
from monotile.targets.cuda.driver import Driver, DriverError, LaunchConfig
from monotile.targets.cuda.launch import CudaKernel, PointerArray

SOURCE = (Path(__file__).parent / "fake_driver.c").read_text()
LAUNCH = Launch(workers=4, threads=256, shared_bytes=1000, workspace_bytes=512)
BINARY = Binary("cuda", b"cubin", "", "NVRTC 13.0", (13, 0))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    path.write_bytes(build_cpu.build(SOURCE, cpu_target(workers=1), Options(cache=False)).image)
    return str(path)


class Fake:
    """The driver, its counters, and PyTorch's side of a call."""

    def __init__(self, library: str) -> None:
        self.driver = Driver(library)
        self.symbols = ctypes.CDLL(library)
        self.stream = 7
        self.capturing = False
        self.number("fake_launches").value = 0

    def number(self, name: str) -> ctypes.c_int:
        return ctypes.c_int.in_dll(self.symbols, name)

    def parameters(self, n: int) -> list[int]:
        return list((ctypes.c_uint64 * 64).in_dll(self.symbols, "fake_parameters"))[:n]

    def kernel(
        self, pointers: int = 3, parameter_bytes: int = 4096, launch: Launch = LAUNCH
    ) -> CudaKernel:
        return CudaKernel(
            BINARY,
            "k",
            launch,
            PointerArray.of(pointers, parameter_bytes),
            device=0,
            driver=self.driver,
            checks=("index out of range for one table", "index out of range for another"),
        )


@pytest.fixture
def fake(library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    it = Fake(library)
    monkeypatch.setattr(cuda, "_stream_getter", lambda _: lambda: it.stream)
    monkeypatch.setattr(cuda, "current_gpu", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "fake GPU")
    monkeypatch.setattr(cuda, "capturing", lambda: it.capturing)
    monkeypatch.setattr(
        CudaKernel, "_allocate", lambda _, n: torch.empty(n, dtype=torch.uint8) if n else None
    )
    changed = (
        "fake_version",
        "fake_resident",
        "fake_cooperative",
        "fake_fail_load",
        "fake_fail_launch",
        "fake_no_failure",
    )
    before = {name: it.number(name).value for name in changed}
    yield it
    for name, value in before.items():
        it.number(name).value = value
    it.driver.set_context(0)


def test_the_parameter_block(fake: Fake) -> None:
    kernel = fake.kernel()
    kernel.launch([11, 12], (13,))
    workspace, sync, *pointers = fake.parameters(5)
    assert pointers == [11, 12, 13]
    assert workspace != 0
    assert ctypes.string_at(sync, 128) == bytes(128)
    sizes = [fake.number(f"fake_{name}").value for name in ("grid", "block", "shared", "launches")]
    assert sizes == [4, 256, 1000, 1]
    assert ctypes.c_void_p.in_dll(fake.symbols, "fake_stream").value == fake.stream
    kernel.launch([21, 22], (23,))
    assert fake.parameters(5) == [workspace, sync, 21, 22, 23]


def test_a_kernel_says_why_it_ended(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = fake.kernel()
    word = ctypes.c_uint.from_address(
        ctypes.c_void_p.in_dll(fake.symbols, "fake_failure").value or 0
    )
    kernel.launch([11, 12], (13,))
    fake.number("fake_fail_launch").value = 1
    with pytest.raises(DriverError, match="a fake error"):
        kernel.launch([11, 12], (13,))
    word.value = 2
    kernel._failures.tell()  # pyright: ignore[reportPrivateUsage]
    assert "index out of range for another" in capsys.readouterr().err
    with pytest.raises(IndexOutOfRangeError, match="index out of range for another"):
        kernel.launch([11, 12], (13,))
    word.value = 0xFFFFFFFF
    with pytest.raises(InternalError, match="20 seconds"):
        kernel.launch([11, 12], (13,))
    word.value = 0


def test_a_cubin_that_cannot_fail(fake: Fake) -> None:
    fake.number("fake_no_failure").value = 1
    fake.kernel().launch([11, 12], (13,))


def test_many_pointers_go_through_a_table(fake: Fake) -> None:
    kernel = fake.kernel(pointers=40, parameter_bytes=64)
    kernel.launch([1, 2], tuple(range(3, 41)))
    table = fake.parameters(3)[2]
    assert list((ctypes.c_uint64 * 40).from_address(table)) == list(range(1, 41))


def test_the_configuration_is_laid_out_as_the_drivers_own() -> None:
    bindings = pytest.importorskip("cuda.bindings.driver")
    theirs, attribute = bindings.CUlaunchConfig(), bindings.CUlaunchAttribute()
    theirs.gridDimX, theirs.gridDimY, theirs.gridDimZ = 4, 1, 1
    theirs.blockDimX, theirs.blockDimY, theirs.blockDimZ = 256, 1, 1
    theirs.sharedMemBytes, theirs.hStream = 1000, 7
    attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    attribute.value.cooperative = 1
    theirs.attrs, theirs.numAttrs = [attribute], 1
    ours = LaunchConfig(4, 256, 1000)
    ours.stream = 7
    expected = bytearray(ctypes.string_at(int(theirs.getPtr()), 56))
    at = int.from_bytes(expected[40:48], "little")
    assert ctypes.string_at(at, 72) == bytes(ours.cooperative)
    expected[40:48] = ctypes.addressof(ours.cooperative).to_bytes(8, "little")
    assert bytes(ours) == bytes(expected)


@pytest.mark.parametrize("pointers", [3, 40])
def test_a_stream_has_its_own_memory_and_a_captured_call_too(fake: Fake, pointers: int) -> None:
    kernel = fake.kernel(pointers=pointers, parameter_bytes=64)
    seen: list[tuple[int, ...]] = []
    for stream, capturing in ((7, False), (8, False), (7, False), (7, True), (7, True)):
        fake.stream, fake.capturing = stream, capturing
        kernel.launch([1, 2], tuple(range(pointers - 2)))
        seen.append(tuple(fake.parameters(2)))
    assert seen[0] == seen[2]
    assert len({sync for _, sync in seen}) == 4
    assert seen[0][0] != seen[1][0]


def test_messages_begin_as_zeros_and_are_no_pools(fake: Fake) -> None:
    kernel = fake.kernel(launch=Launch(4, 256, 1000, 512, message_bytes=1024))
    for capturing in (False, True):
        fake.capturing = capturing
        kernel.launch([1, 2], (3,))
        workspace = fake.parameters(1)[0]
        assert ctypes.string_at(workspace + 512, 1024) == bytes(1024)
        ctypes.memset(workspace + 512, 1, 1024)
        kernel.launch([1, 2], (3,))
        again = fake.parameters(1)[0]
        assert (again == workspace) is not capturing
        assert ctypes.string_at(again + 512, 4) == (bytes(4) if capturing else b"\x01" * 4)


def test_sync_slots_never_repeat(fake: Fake) -> None:
    slots = cuda._SyncSlots(fake.driver)
    taken = {slots.take() for _ in range(300)}
    assert len(taken) == 300
    assert all(ctypes.string_at(s, 128) == bytes(128) for s in taken)


def test_a_thread_without_a_context_gets_one(fake: Fake) -> None:
    kernel = fake.kernel()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            kernel.launch([1, 2], (3,))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed
    assert fake.number("fake_launches").value == 1


def test_loading_leaves_the_threads_context_alone(fake: Fake) -> None:
    fake.driver.set_context(0x99)
    fake.kernel()
    assert fake.driver.current_context() == 0x99


def test_an_old_driver(fake: Fake) -> None:
    fake.number("fake_version").value = 12080
    with pytest.raises(
        TargetError, match=r"serves CUDA 12\.8, and the kernel was built by NVRTC 13\.0"
    ):
        fake.kernel()


def test_blocks_that_are_not_all_resident(fake: Fake) -> None:
    fake.number("fake_resident").value = 0
    with pytest.raises(TargetError, match=r"wants 4 resident blocks of 256 threads.*holds 0"):
        fake.kernel()


def test_no_cooperative_launch(fake: Fake) -> None:
    fake.number("fake_cooperative").value = 0
    with pytest.raises(TargetError, match="no cooperative launch"):
        fake.kernel()


def test_a_cubin_that_does_not_load(fake: Fake) -> None:
    fake.number("fake_fail_load").value = 1
    with pytest.raises(
        TargetError, match=r"GPU 0 \(fake GPU\).*CUDA_ERROR_FAKE \(200\), a fake error"
    ):
        fake.kernel()


def test_no_driver() -> None:
    with pytest.raises(TargetError, match=r'no CUDA driver.*target="cpu"'):
        Driver("libno-such-cuda.so")
