"""Both builds: what they make, their cache, and how they report an emitter's mistake."""

import ctypes
import re
import sys
from pathlib import Path

import pytest

from monotile.config import Options
from monotile.errors import BuildError
from monotile.targets.binary import excerpt
from monotile.targets.cpu import build as build_cpu
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda import build as build_cuda
from monotile.targets.cuda.target import CUDA_TARGETS, cuda_target

CPU = cpu_target(workers=1)
KERNEL = 'extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1; }'


def call(image: bytes) -> int:
    run = build_cpu.load(image).f
    run.restype = ctypes.c_int
    return int(run())


def test_c_is_built_and_loaded() -> None:
    binary = build_cpu.build("int f(void) { return 42; }", CPU, Options(cache=False))
    assert (binary.kind, call(binary.image)) == ("cpu", 42)


def test_two_images_are_two_libraries() -> None:
    images = [
        build_cpu.build(f"int f(void) {{ return {n}; }}", CPU, Options(cache=False)).image
        for n in (1, 2)
    ]
    assert [call(image) for image in images] == [1, 2]


def test_the_wheels_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    # A folder that lasts: the first build with it takes seconds.
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(build_cpu.cache_directory(Options()) / "zig"))
    compiler = build_cpu.find_compiler()
    assert compiler.zig
    assert compiler.command[0] == sys.executable
    source = "#include <math.h>\n#include <pthread.h>\nint f(void) { return (int)sqrtf(49); }"
    assert call(build_cpu.build(source, CPU, Options(cache=False)).image) == 7


def test_cc_names_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(BuildError, match=r'\$CC names, "no-such-compiler -m64", was not found'):
        build_cpu.find_compiler()


def test_no_compiler_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    monkeypatch.setattr(build_cpu.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BuildError, match=r"no C compiler was found\. Install gcc or clang, set"):
        build_cpu.find_compiler()


def test_the_second_c_build_comes_from_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = Options(cache_dir=str(tmp_path))
    first = build_cpu.build("int f(void) { return 3; }", CPU, options)
    monkeypatch.setattr(build_cpu, "_compile", None)
    assert build_cpu.build("int f(void) { return 3; }", CPU, options) == first
    with pytest.raises(TypeError):
        build_cpu.build("int f(void) { return 4; }", CPU, options)


def test_a_mistake_in_c_shows_its_line_and_the_log() -> None:
    with pytest.raises(BuildError) as caught:
        build_cpu.build("int g;\nint f(void) {\n  return x;\n}\n", CPU, Options(cache=False))
    assert ">     3 |   return x;" in str(caught.value)
    assert "undeclared" in str(caught.value)


FUNCTIONS = """
#pragma nv_abi preserve_n_data(4)
__device__ void stage(int* x);
inline __device__ __noinline__ void shared(int* x) { x[threadIdx.x] += 1; }
#if MT_UNIT == 0
__device__ int* place;
extern "C" __global__ void k(int* x) { stage(x); shared(place); }
#else
extern __device__ int* place;
#pragma nv_abi preserve_n_data(4)
__device__ __noinline__ void stage(int* x) { shared(x); place = x; }
#endif
"""


@pytest.mark.parametrize("architecture", CUDA_TARGETS)
def test_parts_are_built_and_linked(architecture: str) -> None:
    target, options = cuda_target(architecture), Options(cache=False)
    binary = build_cuda.build(FUNCTIONS, target, options, units=2)
    assert binary.image.startswith(b"\x7fELF")
    assert b"stage" in binary.image, "a function of its own"
    *_, stage = re.split(r"^\.func", binary.ptx, flags=re.MULTILINE)
    assert ".abi_preserve 4" in stage.split("{")[0]
    assert ".visible .func" not in binary.ptx, "only the kernel calls it"
    assert len(re.findall(r"^\.func .*shared", binary.ptx, re.MULTILINE)) == 1
    assert binary.ptx.count(" place;") == 1
    assert "warning" not in binary.log


@pytest.mark.parametrize(
    ("quotient", "kept"),
    [("x[0] / x[1]", False), ("(long long)x[0] % y", False), ("y / 3", True), ("__fdividef(x[0], x[1])", True)],
)  # fmt: skip
def test_what_ptxas_has_routines_for_keeps_to_the_usual_convention(
    quotient: str, kept: bool
) -> None:
    """These overwrite registers that ptxas forgets of in functions with another."""
    head = "#pragma nv_abi preserve_n_data(4)\n__device__ __noinline__ void stage(float* x, long long y)"
    text = (
        f"{head};\n#if MT_UNIT == 0\n"
        'extern "C" __global__ void k(float* x, long long y) { stage(x, y); x[2] = 0; }\n#else\n'
        f"{head} {{ x[threadIdx.x] = {quotient}; }}\n#endif\n"
    )
    built = build_cuda.build(text, cuda_target("sm_90a"), Options(cache=False), units=2)
    *_, stage = re.split(r"^\.func", built.ptx, flags=re.MULTILINE)
    assert (".abi_preserve" in stage.split("{")[0]) == kept


def test_what_cannot_be_linked_shows_the_log() -> None:
    text = 'extern __device__ void lost();\nextern "C" __global__ void k() { lost(); }\n'
    with pytest.raises(BuildError, match="lost"):
        build_cuda.build(text, cuda_target("sm_80"), Options(cache=False), units=1)


@pytest.mark.parametrize("architecture", CUDA_TARGETS)
def test_cuda_is_built_without_a_gpu(architecture: str) -> None:
    binary = build_cuda.build(KERNEL, cuda_target(architecture), Options(cache=False))
    assert binary.image.startswith(b"\x7fELF")
    assert f".target {architecture}" in binary.ptx
    assert binary.cuda[0] == 13


def test_a_mistake_in_cuda_shows_its_line_and_the_log() -> None:
    text = "\n__global__ void k() {\n  int y = x;\n}\n"
    with pytest.raises(BuildError) as caught:
        build_cuda.build(text, cuda_target("sm_80"), Options(cache=False))
    assert ">     3 |   int y = x;" in str(caught.value)
    assert 'identifier "x" is undefined' in str(caught.value)


def test_the_second_cuda_build_comes_from_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options, target = Options(cache_dir=str(tmp_path)), cuda_target("sm_80")
    first = build_cuda.build(KERNEL, target, options)
    monkeypatch.setattr(build_cuda, "_compile", None)
    assert build_cuda.build(KERNEL, target, options) == first
    with pytest.raises(TypeError):
        build_cuda.build(KERNEL, cuda_target("sm_86"), options)


def test_an_excerpt_marks_lines_and_stays_short() -> None:
    text = "\n".join(str(n) for n in range(1, 101))
    assert excerpt(text, [1], around=1) == ">     1 | 1\n      2 | 2"
    assert len(excerpt(text, list(range(1, 100, 10)), around=0).splitlines()) == 5
    assert excerpt(text, [500]) == ""
