"""Error reports of a kernel that traps: a number in a word of host memory.

A failed launch leaves the GPU's context unusable, and shows up wherever PyTorch next waits. The cause is raised at the next call, or
when the process ends.
"""

import atexit
import ctypes
import functools
import sys

from monotile.errors import IndexOutOfRangeError, InternalError
from monotile.targets.cuda.driver import Driver

SYMBOL = "mt_failure"  # of targets/cuda/device/check.cuh
_HANDOFF_TIMEOUT = 0xFFFFFFFE  # the same there


class Failures:
    """The failure word of the kernel `function` of the current context.

    checks: messages of its index checks, by number.
    """

    def __init__(self, driver: Driver, function: int, checks: tuple[str, ...]) -> None:
        self._checks = checks
        self._word = ctypes.c_uint.from_address(driver.host_word())
        driver.set_pointer(function, SYMBOL, ctypes.addressof(self._word))
        self._told = False
        _every().append(self)

    def check(self) -> None:
        """Raises IndexOutOfRangeError, or InternalError for a hand-off that timed out, if the kernel has reported one."""
        number = self._word.value - 1
        if number < 0:
            return
        self._told = True
        if number == _HANDOFF_TIMEOUT:
            raise InternalError("a block has waited 20 seconds for the others at a hand-off")
        raise IndexOutOfRangeError(
            f"{self._checks[number]}. The GPU's context is lost: start the process anew"
        )

    def tell(self) -> None:
        """Prints on stderr a failure that no call has raised."""
        if not self._told:
            try:
                self.check()
            except (IndexOutOfRangeError, InternalError) as error:
                sys.stderr.write(f"monotile: a kernel ended itself: {error}\n")


def check_all() -> None:
    """`Failures.check` for all kernels: after one of them has failed no launch succeeds."""
    for failures in _every():
        failures.check()


@functools.cache
def _every() -> list[Failures]:
    found: list[Failures] = []
    atexit.register(lambda: [f.tell() for f in found])
    return found
