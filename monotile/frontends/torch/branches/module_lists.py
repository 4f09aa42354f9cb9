"""Modules selected from an `nn.ModuleList` by a tensor, `self.experts[i](x)`, while a model is traced: each module is traced as a branch of an `if` on the
index.
"""

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
from monotile.frontends.torch.branches.selection import JoinError, TracedIf
from monotile.frontends.torch.origin import describe_frame, users_frame

IsUnknown = Callable[[FakeTensor, FrameType], bool]


class ModuleEffectError(CaptureError):
    """A module that may not be the selected one has a side effect outside of itself."""


class ModuleLists:
    """Module lists indexed by tensors. where: the line of the selection that is traced now."""

    def __init__(self) -> None:
        self.where: str | None = None

    @contextmanager
    def tensors_index(self, is_unknown: IsUnknown) -> Generator[None]:
        """Within, a traced tensor may index a module list. is_unknown: whether the model uses a tensor whose value is unknown."""
        plain: Any = nn.ModuleList.__getitem__

        def getitem(modules: nn.ModuleList, index: Any) -> Any:
            frame = users_frame(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            if (
                not isinstance(index, FakeTensor)
                or not is_unknown(index, frame)
                or index.numel() != 1
            ):
                return plain(modules, index)
            return _SelectedModule(self, list(modules), index, describe_frame(frame))

        with patch.object(nn.ModuleList, "__getitem__", getitem):
            yield

    def refuse_within(self, what: str, at: str) -> None:
        """Raises ModuleEffectError if a module that may not be the selected one has a side effect `what`."""
        if self.where is not None:
            raise ModuleEffectError(
                f"at {at}: {what} in a module that a tensor selects from a list, at {self.where}: compute all modules, and select the"
                " result (torch.where)"
            )


class _SelectedModule:
    """The selected one of `modules`, which may only be called."""

    def __init__(
        self, lists: ModuleLists, modules: Sequence[nn.Module], index: torch.Tensor, where: str
    ) -> None:
        self._lists, self._modules, self._where = lists, modules, where
        place = index.reshape(())
        self._index = torch.where(place < 0, place + len(modules), place)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outer, self._lists.where = self._lists.where, self._where
        try:
            return self._from(0, lambda module: module(*args, **kwargs))
        except JoinError as e:
            if e.line:  # of an `if` in one of them
                raise
            raise CaptureError(
                f"at {self._where}: a tensor selects a module from a list, and the modules' results have different types, shapes or Python values:"
                " compute all modules, and select the result"
            ) from e
        finally:
            self._lists.where = outer

    def _from(self, k: int, call: Callable[[nn.Module], Any]) -> Any:
        """The result of the selected module, which is number `k` or a later one."""
        if k == len(self._modules) - 1:
            return call(self._modules[k])
        choice = TracedIf(self._index == k, 0)
        return choice.value(lambda: call(self._modules[k]), lambda: self._from(k + 1, call))

    def __getattr__(self, name: str) -> Any:
        raise CaptureError(
            f"at {self._where}: a tensor selects a module from a list, of which .{name} is read: such a module may only be called"
        )
