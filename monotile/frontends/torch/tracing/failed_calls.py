"""Calls of modules that raise an exception which the traced model catches: `try: layer(x, lengths=n)`, `except TypeError: layer(x)`.

PyTorch's tracer keeps a stack of the modules that are being called, which it leaves as it is when a call raises, and does not find right
when the next one returns.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch.fx import Tracer


@contextmanager
def calls_may_fail() -> Generator[None, None, None]:
    """Within, a call that raises restores the tracer's stack."""
    plain: Callable[..., Any] = Tracer.call_module

    def call(self: Tracer, *args: Any, **kwargs: Any) -> Any:
        depth = len(self.module_stack)
        try:
            return plain(self, *args, **kwargs)
        except BaseException:
            while len(self.module_stack) > depth:
                self.module_stack.popitem(last=True)
            raise

    with patch.object(Tracer, "call_module", call):
        yield
