"""`p.data` while a model is traced: PyTorch's tracer loses reads of it and assignments to it.

Reading it is a `detach`. A parameter or buffer whose `data` is assigned holds the new values in its own memory, so that each call updates it as
any other state.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from monotile.errors import CaptureError
from monotile.frontends.torch.tracing.overrides import Override

_Data: Any = torch.Tensor.data
_GET, _SET = _Data.__get__, _Data.__set__


def assigned_data(model: nn.Module) -> Mapping[str, Override]:
    """For `FunctionOverrides`: `model` may read and assign `data`."""

    def read_or_assigned(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if func not in (_GET, _SET) or not isinstance(args[0], FakeTensor) or not _is_traced():
            return func(*args, **named)
        if func == _GET:
            return args[0].detach()
        x, value = args[:2]
        held = chain(model.parameters(), model.buffers())
        if not any(x is h for h in held):
            raise CaptureError(
                f"a tensor of shape {tuple(x.shape)} that is no parameter or buffer is assigned other data (x.data = ...): assign the"
                " tensor itself (x = ...)"
            )
        if (x.shape, x.dtype, x.device) != (value.shape, value.dtype, value.device):
            raise CaptureError(
                f"a parameter or buffer, {_words(x)}, is assigned other data (p.data = ...), {_words(value)}: that has to have its shape, type"
                " and device"
            )
        x.detach().copy_(value)
        return None

    return {f.__name__: read_or_assigned for f in (_GET, _SET)}


def _is_traced() -> bool:
    return get_proxy_mode() is not None


def _words(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)} on {x.device.type}"
