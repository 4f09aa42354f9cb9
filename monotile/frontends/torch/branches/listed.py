"""Modules that a tensor chooses from a list, `self.experts[i](x)`, while a model is traced: each is traced, between the marks of an `if` on the index."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from monotile.errors import CaptureError
from monotile.frontends.torch.branches.selection import Choice, Unjoinable
from monotile.frontends.torch.origin import describe_frame, users_frame

Asked = Callable[[FakeTensor, FrameType], bool]


class ChosenError(CaptureError):
    """A module that may not be the one has an effect that cannot be kept to it."""


class Listed:
    """Lists of modules. where: the line whose choice is traced now."""

    def __init__(self) -> None:
        self.where: str | None = None

    @contextmanager
    def chosen(self, asked: Asked) -> Generator[None]:
        """Within, a traced tensor may be an index. asked: whether one is of the model, and unknown."""
        plain: Any = nn.ModuleList.__getitem__

        def getitem(modules: nn.ModuleList, index: Any) -> Any:
            frame = users_frame(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            if not isinstance(index, FakeTensor) or not asked(index, frame) or index.numel() != 1:
                return plain(modules, index)
            return _Chosen(self, list(modules), index, describe_frame(frame))

        with patch.object(nn.ModuleList, "__getitem__", getitem):
            yield

    def refuse_within(self, what: str, at: str) -> None:
        """Raises ChosenError where a module that may not be the one does what the others would see."""
        if self.where is not None:
            raise ChosenError(
                f"at {at}: {what} in a module that a tensor chooses from a list, at {self.where}: compute all of them, and select the"
                " result (torch.where)"
            )


class _Chosen:
    """One of `modules`, to be called."""

    def __init__(
        self, listed: Listed, modules: Sequence[nn.Module], index: torch.Tensor, where: str
    ) -> None:
        self._listed, self._modules, self._where = listed, modules, where
        place = index.reshape(())
        self._index = torch.where(place < 0, place + len(modules), place)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outer, self._listed.where = self._listed.where, self._where
        try:
            return self._from(0, lambda module: module(*args, **kwargs))
        except Unjoinable as e:
            if e.line:  # of an `if` in one of them
                raise
            raise CaptureError(
                f"at {self._where}: a tensor chooses a module from a list, and their results have different types, shapes or Python values:"
                " compute all of them, and select"
            ) from e
        finally:
            self._listed.where = outer

    def _from(self, k: int, call: Callable[[nn.Module], Any]) -> Any:
        """The result of that one of the modules from number `k` on."""
        if k == len(self._modules) - 1:
            return call(self._modules[k])
        choice = Choice(self._index == k, 0)
        return choice.value(lambda: call(self._modules[k]), lambda: self._from(k + 1, call))

    def __getattr__(self, name: str) -> Any:
        raise CaptureError(
            f"at {self._where}: a tensor chooses a module from a list, of which .{name} is read: such a module may only be called"
        )
