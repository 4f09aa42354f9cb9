"""The mixture of experts, from the plain form's stacked weights."""

from typing import Any

import jax
import jax.numpy as jnp
from torch import nn

from bench.plain.mmoe import Mmoe


def network(model: nn.Module, args: Any, kwargs: Any) -> Any:
    del kwargs
    return run, dict(Mmoe(model).named_parameters()), args


def run(p: Any, x: jax.Array) -> Any:
    batch, tasks, width = x.shape[0], p["up"].shape[0], p["up"].shape[1]
    rows = p["first"].shape[0]  # experts * width + tasks * experts
    experts = rows // (width + tasks)
    y = x @ p["first"].T + p["first_bias"]
    opinions = jax.nn.relu(y[:, : experts * width]).reshape(batch, experts, width)
    weights = jax.nn.softmax(y[:, experts * width :].reshape(batch, tasks, experts), axis=-1)
    mixed = jnp.einsum("bte,bew->tbw", weights, opinions)
    hidden = jax.nn.relu(jnp.einsum("tbw,twh->tbh", mixed, p["up"]) + p["up_bias"])
    found = jax.nn.softmax(jnp.einsum("tbh,tho->tbo", hidden, p["down"]) + p["down_bias"], axis=-1)
    return tuple(found[t] for t in range(tasks))
