"""Every kind of target. To add one: a folder beside this file with a `Backend`, and its line here."""

from monotile.targets.backend import Backend
from monotile.targets.cpu.backend import CPU
from monotile.targets.cuda.backend import CUDA
from monotile.targets.target import Target

# By `Target.kind`. "auto" is the first that is present.
BACKENDS: dict[str, Backend] = {
    CUDA.kind: CUDA,
    CPU.kind: CPU,
}


def backend_of(target: Target) -> Backend:
    return BACKENDS[target.kind]
