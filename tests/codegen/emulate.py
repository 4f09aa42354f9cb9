"""Runs generated CUDA on the host: the kernel's text with the emulator's twin of the `ptx/` headers."""

import atexit
import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from monotile.codegen.source import Source
from monotile.ir.program import Program, state_names
from monotile.plan.nodes import Plan

HERE = Path(__file__).resolve().parent
HEADERS = HERE.parent.parent / "monotile" / "targets"
COMPILER = shutil.which("g++")
ALIGN = 256
POISON = 0x7F  # of bytes round what a kernel is given: no index, and no number of 16 bits

TAIL = """
static Params* the_parameters;
static void the_kernel() { monotile_kernel(*the_parameters); }
extern "C" const char* emulate(Params* p, unsigned workers, unsigned threads, unsigned shared, int late, unsigned seed) {
  the_parameters = p;
  return emulator::run(the_kernel, workers, threads, shared, late, seed);
}
"""


class EmulationError(Exception):
    """The kernel failed: an index check, a trap, a misaligned access or a deadlock."""


INCLUDES = tuple(f"-I{p}" for p in (HERE / "emulator", HEADERS))
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-w", "-mf16c", "-fno-strict-aliasing")
LINK = (
    "-shared",
    *(("-fuse-ld=gold",) if shutil.which("ld.gold") else ()),
)  # a third of a link's time


@functools.cache
def _emulator() -> Path:
    """The emulator, compiled once, in the folder of what this run compiles."""
    found = Path(tempfile.mkdtemp(prefix="monotile-emulator-"))
    atexit.register(shutil.rmtree, found, ignore_errors=True)
    compiled = found / "emulator.o"
    _compile("-c", *INCLUDES, str(HERE / "emulator" / "emulator.cpp"), "-o", str(compiled))
    return compiled


@functools.cache
def _directory(defines: str) -> Path:
    """Where this run's libraries of sources with these `defines` lie, and the device headers, compiled once: they would be most of a
    small kernel's build."""
    found = Path(tempfile.mkdtemp(dir=_emulator().parent))
    header = found / "emulated.h"
    header.write_text(f'{defines}#include "emulator.h"\n#include "cuda/device/monotile.cuh"\n')
    _compile("-x", "c++-header", *INCLUDES, str(header), "-o", f"{header}.gch")
    return found


def _compile(*arguments: str) -> None:
    done = subprocess.run(
        [str(COMPILER), *FLAGS, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:4000]


def _library(text: str) -> ctypes.CDLL:
    key = hashlib.sha256(text.encode()).hexdigest()[:20]
    at = _directory(
        "".join(
            f"{line}\n"
            for line in text.splitlines()
            if line.startswith("#define MT_") and "(" not in line
        )
    )
    source, library = at / f"{key}.cpp", at / f"{key}.so"
    if not library.exists():
        source.write_text(text + TAIL)
        header, emulator = str(at / "emulated.h"), str(_emulator())
        _compile(*LINK, *INCLUDES, "-include", header, str(source), emulator, "-o", str(library))
    return ctypes.CDLL(str(library))


def _aligned(nbytes: int, fill: int) -> np.ndarray:
    raw = np.full(max(nbytes, 1) + 3 * ALIGN, fill, np.uint8)
    start = ALIGN + -raw.ctypes.data % ALIGN
    return raw[start : start + max(nbytes, 1)]


@dataclass(frozen=True)
class Launch:
    """workers: blocks. threads: of a block. shared_bytes: of on-chip memory of a block. workspace_bytes, message_bytes: of
    the memory that calls share."""

    workers: int
    threads: int
    shared_bytes: int
    workspace_bytes: int = 0
    message_bytes: int = 0


class Memory:
    """What the calls of one stream have in common: the workspace, messages behind it, and the sync words."""

    def __init__(self, shape: Launch) -> None:
        self.workspace = _aligned(shape.workspace_bytes + shape.message_bytes, 0xFF)
        self.workspace[shape.workspace_bytes :] = 0
        self.sync = _aligned(128, 0)


def launch(
    text: str,
    arrays: Sequence[np.ndarray | int],
    shape: Launch,
    *,
    late: bool,
    seed: int,
    results: Sequence[int],
    memory: Memory | None = None,
) -> list[np.ndarray]:
    """Runs `monotile_kernel` on copies of `arrays`; gives those numbered `results` as they are afterwards, as bytes.

    memory: as the call before left it; None: fresh. A number among the arrays is a size: it stands for itself.
    """
    on = memory or Memory(shape)
    buffers: list[np.ndarray] = []
    for array in arrays:
        data = np.ascontiguousarray(array)
        held = _aligned(data.nbytes, POISON)
        held[: data.nbytes] = data.reshape(-1).view(np.uint8)
        buffers.append(held)

    class Params(ctypes.Structure):
        _fields_ = (
            ("workspace", ctypes.c_void_p),
            ("sync", ctypes.c_void_p),
            ("pointers", ctypes.c_void_p * max(1, len(buffers))),
        )

    pointers = (ctypes.c_void_p * max(1, len(buffers)))(*(b.ctypes.data for b in buffers))
    for k, array in enumerate(arrays):
        if isinstance(array, int):
            pointers[k] = array
    p = Params(on.workspace.ctypes.data, on.sync.ctypes.data, pointers)
    library = _library(text)
    library.emulate.restype = ctypes.c_char_p
    failed = library.emulate(
        ctypes.byref(p), shape.workers, shape.threads, shape.shared_bytes, int(late), seed
    )
    if failed is not None:
        raise EmulationError(failed.decode())
    counters = on.sync if not shape.message_bytes else on.sync[:8]
    assert not counters.any(), "the kernel leaves the counters as it found them: zero"
    return [buffers[k] for k in results]


def bits(x: np.ndarray) -> int:
    """What the launch has of a size."""
    return int(np.asarray(x).view(np.uint64))


def launch_of(plan: Plan) -> Launch:
    p = plan.launch
    return Launch(p.workers, p.block_threads, p.block_bytes, p.workspace_bytes, p.message_bytes)


def emulate(
    program: Program,
    plan: Plan,
    source: Source,
    values: Mapping[str, np.ndarray],
    *,
    late: bool = True,
    seed: int = 0,
    memory: Memory | None = None,
) -> tuple[np.ndarray, ...]:
    """The outputs. values: by input tensor and weight part. late: asynchronous copies happen as late as they may. memory: as
    the call before left it."""
    before = [bits(values[n]) if n in program.by_value else values[n] for n in plan.inputs]
    outputs = [np.full(t.nbytes, 0xFF, np.uint8) for t in program.results]
    weights = [values[name] for name in plan.weights]

    def slot(state: str) -> int:
        if state in plan.inputs:
            return plan.inputs.index(state)
        return len(before) + len(outputs) + plan.weights.index(state)

    got = launch(
        source.text,
        [*before, *outputs, *weights],
        launch_of(plan),
        late=late,
        seed=seed,
        results=[*range(len(before), len(before) + len(outputs)), *map(slot, state_names(program))],
        memory=memory,
    )
    count = len(program.results)
    states = dict(zip(state_names(program), got[count:], strict=True))
    parts = {w.tensor.name: w.parts for w in program.weights}
    kept = (np.concatenate([states[p] for p in parts.get(n, (n,))]) for n in program.states)
    return tuple(
        b[: t.nbytes].view(t.dtype.numpy).reshape(t.shape).copy()
        for b, t in zip((*got[:count], *kept), program.outputs, strict=True)
    )
