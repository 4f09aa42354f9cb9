"""In-place updates of tensors that a model holds as plain attributes, while it is traced.

PyTorch executes an operator whose tensor arguments are all real, such as `self.count.add_(1)`, and so would update the model's own tensor at compile
time. Here such an update is traced like any other.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch._subclasses import fake_tensor


@contextmanager
def attribute_updates_are_traced() -> Generator[None]:
    """Within, no trace writes to a real tensor."""
    plain = fake_tensor.should_allow_numbers_as_tensors

    def computed(func: Any) -> bool:
        return plain(func) and not func._schema.is_mutable

    with patch.object(fake_tensor, "should_allow_numbers_as_tensors", computed):
        yield
