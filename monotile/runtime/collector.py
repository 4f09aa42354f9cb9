"""Python's collector of cycles, out of the way while compiling."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collecting_later() -> Generator[None]:
    """Runs its body without the collector: the body makes many objects that live to its end, and PyTorch's own are
    many more, so that looking through all of them again and again takes a twentieth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
