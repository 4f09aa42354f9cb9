"""Options of a call to a generator: sampling, and the ids that end a sequence."""

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

from torch import nn

from monotile.errors import InputError
from monotile.generation.sampling import Controls
from monotile.generation.step import STOPS


class Sampling(TypedDict):
    """How a token is chosen, with transformers' names and order. temperature: 0 (the default) takes the most likely token; else tokens
    are drawn. top_k: 0 for all. The others exclude nothing by default."""

    temperature: NotRequired[float]
    top_k: NotRequired[int]
    top_p: NotRequired[float]
    min_p: NotRequired[float]
    repetition_penalty: NotRequired[float]


# By name: the neutral value, the least, the greatest.
RANGES: dict[str, tuple[float, float, float]] = {
    "temperature": (0.0, 0.0, 1e6),
    "top_k": (0, 0, 2**31),
    "top_p": (1.0, 1e-6, 1.0),
    "min_p": (0.0, 0.0, 1.0),
    "repetition_penalty": (1.0, 1e-3, 1e3),
}


def checked(sampling: Sampling) -> tuple[int, list[float]]:
    """top_k, and the values of `Controls`. Raises InputError for an unknown name or a value out of its range."""
    given: dict[str, Any] = dict(sampling)
    if unknown := given.keys() - RANGES.keys():
        raise InputError(f"unknown {', '.join(sorted(unknown))}: there are {', '.join(RANGES)}")
    chosen: dict[str, float] = {}
    for name, (default, low, high) in RANGES.items():
        chosen[name] = given.get(name, default)
        if not low <= chosen[name] <= high:
            raise InputError(f"{name} is {chosen[name]}: it has to be from {low:g} to {high:g}")
    controls = [0.0] * Controls.COUNT
    controls[Controls.TEMPERATURE], controls[Controls.TOP_P] = chosen["temperature"], chosen["top_p"]  # fmt: skip
    controls[Controls.MIN_P], controls[Controls.PENALTY] = chosen["min_p"], chosen["repetition_penalty"]  # fmt: skip
    return int(chosen["top_k"]), controls


def stops_of(model: nn.Module) -> tuple[int, ...]:
    """The ids that end the model's own sequences."""
    found = _of(model, "eos_token_id")
    return () if found is None else listed(found)


def pad_of(model: nn.Module) -> int | None:
    """The id that fills up the model's own sequences; None: the first that ends one."""
    found = _of(model, "pad_token_id")
    return None if found is None else int(found)


def listed(ids: int | Sequence[int]) -> tuple[int, ...]:
    """The ids that end a sequence, as a list. Raises InputError where there are too many."""
    found = (ids,) if isinstance(ids, int) else tuple(ids)
    if len(found) > STOPS:
        raise InputError(f"{len(found)} ids that end a sequence: at most {STOPS}")
    return found


def _of(model: nn.Module, name: str) -> Any:
    for config in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        found: Any = getattr(config, name, None)
        if found is not None:
            return found
    return None
