"""The state of a kernel's random numbers: int64 [2], the seed and the number of calls so far, which each call updates in place."""

from collections.abc import Collection, Mapping

import torch

from monotile.ir.signature import RANDOM_STATE


def begun(parameters: Mapping[str, torch.Tensor], names: Collection[str]) -> Mapping[str, torch.Tensor]:  # fmt: skip
    """`parameters` with a new state, if it is among `names`, seeded by PyTorch's generator."""
    if RANDOM_STATE not in names:
        return parameters
    return {**parameters, RANDOM_STATE: _state(torch.initial_seed())}


def reseed(state: torch.Tensor, seed: int) -> None:
    """Resets `state` to `seed` and to no calls."""
    state.copy_(_state(seed))


def _state(seed: int) -> torch.Tensor:
    """seed: from -2**63 to 2**64 - 1, as for `torch.manual_seed`."""
    return torch.tensor([(seed + 2**63) % 2**64 - 2**63, 0], dtype=torch.int64)
