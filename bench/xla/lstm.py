"""Layers of LSTM: the inputs' products of a layer at once, then a scan over its steps."""

from typing import Any

import jax
import jax.numpy as jnp
from torch import nn


def network(model: nn.LSTM, args: Any, kwargs: Any) -> Any:
    del kwargs
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    layers = [[getattr(model, f"{n}_l{k}") for n in names] for k in range(model.num_layers)]
    return run, layers, args


def run(layers: Any, xs: jax.Array) -> Any:
    last_h, last_c = [], []
    for of_input, of_state, bias_1, bias_2 in layers:
        projected = xs @ of_input.T + (bias_1 + bias_2)
        zero = jnp.zeros((xs.shape[1], of_state.shape[1]), xs.dtype)

        def step(carry: Any, x: Any, matrix: Any = of_state) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(x + h @ matrix.T, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        (h, c), xs = jax.lax.scan(step, (zero, zero), projected, unroll=10)
        last_h.append(h)
        last_c.append(c)
    return xs, jnp.stack(last_h), jnp.stack(last_c)
