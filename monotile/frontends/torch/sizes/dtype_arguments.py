"""`dtype=int` where `int` and `float` are replaced by classes of `symbolic_builtins.py`: PyTorch accepts only Python's own as dtypes."""

import functools
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor

_MAKES = (
    "zeros ones full empty arange tensor as_tensor asarray linspace logspace eye scalar_tensor zeros_like ones_like full_like empty_like"
    " rand randn randint rand_like randn_like randint_like tril_indices triu_indices"
)
_BOTH = "sum nansum mean nanmean prod cumsum cumprod softmax log_softmax"
_METHODS = "to type view new_zeros new_ones new_full new_empty new_tensor"


@contextmanager
def dtypes_by_builtin(own: Callable[[Any], Any]) -> Generator[None]:
    """Within, functions and methods of traced tensors that take dtypes receive `own` of their arguments."""

    def taking(of: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(of)
        def function(*args: Any, **named: Any) -> Any:
            return of(*map(own, args), **{n: own(x) for n, x in named.items()})

        return function

    with ExitStack() as stack:
        for owner, names in ((torch, f"{_MAKES} {_BOTH}"), (FakeTensor, f"{_BOTH} {_METHODS}")):
            for name in names.split():
                if (of := getattr(owner, name, None)) is not None:
                    stack.enter_context(patch.object(owner, name, taking(of)))
        yield
