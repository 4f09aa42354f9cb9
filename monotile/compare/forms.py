"""The forms of a network on which a rival is timed: unchanged, written plainly, in channels-last memory format."""

import copy
import importlib
from collections.abc import Callable
from typing import Any

import torch

from monotile.compare.jobs import Network
from monotile.runtime.reference import Call, map_tensors

Form = Callable[[Network, torch.nn.Module, Call], tuple[torch.nn.Module, Call]]


def named(spec: str) -> Callable[..., Any]:
    """The function of "module:function"."""
    module, _, name = spec.partition(":")
    return getattr(importlib.import_module(module), name)


def forms_of(network: Network) -> tuple[str, ...]:
    """The forms that exist for the network."""
    plain = ("plain",) if network.plain else ()
    return ("module", *plain, *(("channels-last",) if network.images else ()))


def _module(_: Network, model: torch.nn.Module, call: Call) -> tuple[torch.nn.Module, Call]:
    return model, call


def _plain(network: Network, model: torch.nn.Module, call: Call) -> tuple[torch.nn.Module, Call]:
    assert network.plain is not None
    return named(network.plain)(model).eval().requires_grad_(False), call


def _channels_last(_: Network, model: torch.nn.Module, call: Call) -> tuple[torch.nn.Module, Call]:
    last = torch.channels_last
    moved = map_tensors(call, lambda x: x.contiguous(memory_format=last) if x.dim() == 4 else x)
    convert: Any = copy.deepcopy(model).to
    return convert(memory_format=last), moved


FORMS: dict[str, Form] = {"module": _module, "plain": _plain, "channels-last": _channels_last}
