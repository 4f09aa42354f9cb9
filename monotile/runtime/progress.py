"""Reports steps that take over a second on standard error."""

import contextlib
import threading
from collections.abc import Generator

from rich.console import Console

_PATIENCE = 1.0  # seconds before a step is reported


@contextlib.contextmanager
def step(words: str, *, shown: bool) -> Generator[None]:
    """Runs its body; if that takes over a second, shows `words` with a spinner until the end."""
    if not shown:
        yield
        return
    status = Console(stderr=True).status(words)
    timer = threading.Timer(_PATIENCE, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
