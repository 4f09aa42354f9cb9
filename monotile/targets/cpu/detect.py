"""The CPU of this machine as a `Target`."""

import os
from pathlib import Path

from monotile.config import Options
from monotile.targets.calibration import Machine, flat, kept, replaced
from monotile.targets.cpu.build import processor, tiles_allowed
from monotile.targets.cpu.target import FIGURES, cpu_target
from monotile.targets.target import Target
from monotile.targets.workers import chosen_workers


def detect(_name: str, options: Options) -> Target:
    """The cores that this process may use. Raises TargetError where `options` asks for more."""
    found = kept(machine(), options)
    return cpu_target(
        figures=replaced(FIGURES, found.figures if found else {}),
        workers=chosen_workers(options, _cores(), "cores that this process may use"),
        l2_bytes=_l2_bytes(),
        vector_bytes=_vector_bytes(),
        instructions=_instructions(),
    )


def machine() -> Machine:
    """This CPU, for calibration."""
    return Machine(
        name=f"cpu {processor()}",
        identity={"processor": processor(), "cores": _cores()},
        shipped=flat(FIGURES),
        source=f"{FIGURES.name}.json: {FIGURES.source}",
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _l2_bytes() -> int:
    """Bytes of a core's L2 cache; 1 MiB if the system does not report it."""
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (index / "level").read_text().strip() == "2":
                size = (index / "size").read_text().strip()
                return int(size.removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
    return 1 << 20


def _vector_bytes() -> int:
    """Widest vector of the processor."""
    words = _words()
    return 64 if "avx512f" in words else 32 if "avx2" in words else 16


def _instructions() -> frozenset[str]:
    """The instructions for products of words that processor and system let this process use."""
    words, found = _words(), set[str]()
    if words & {"avx512_vnni", "avx_vnni"}:
        found.add("vnni")
    if words >= {"amx_tile", "amx_bf16", "amx_int8"} and tiles_allowed():
        found |= {"amx.bf16", "amx.int8"}
    return frozenset(found)


def _words() -> set[str]:
    """The system's description of the processor, as words."""
    try:
        return set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return set()
