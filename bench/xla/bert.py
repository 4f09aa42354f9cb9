"""BERT's encoder, from the plain form's weights."""

from typing import Any

import jax
import jax.numpy as jnp
from torch import nn

from bench.plain.bert import Bert

EPSILON = 1e-12
HEAD = 64  # width of one


def network(model: nn.Module, args: Any, kwargs: Any) -> Any:
    del kwargs
    return run, _tree(Bert(model)), args


def _tree(m: nn.Module) -> Any:
    layers = [dict(layer.named_parameters()) for layer in m.layers]
    names = ("words.weight", "places.weight", "types.weight", "norm.weight", "norm.bias")
    own = dict(m.named_parameters())
    return {"layers": layers, **{name: own[name] for name in names}}


def _norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    away = wide - mean
    variance = (away * away).mean(-1, keepdims=True)
    return (away * jax.lax.rsqrt(variance + EPSILON)).astype(x.dtype) * scale + shift


def run(p: Any, ids: jax.Array) -> Any:
    batch, tokens = ids.shape
    x = p["words.weight"][ids] + p["places.weight"][:tokens] + p["types.weight"][0]
    x = _norm(x, p["norm.weight"], p["norm.bias"])
    for w in p["layers"]:
        qkv = x @ w["qkv.weight"].T + w["qkv.bias"]
        q, k, v = jnp.split(qkv.reshape(batch, tokens, -1, HEAD), 3, axis=2)
        found = jax.nn.dot_product_attention(q, k, v).reshape(batch, tokens, -1)
        x = _norm(
            x + found @ w["out.weight"].T + w["out.bias"], w["norm_1.weight"], w["norm_1.bias"]
        )
        hidden = jax.nn.gelu(x @ w["up.weight"].T + w["up.bias"], approximate=False)
        y = hidden @ w["down.weight"].T + w["down.bias"]
        x = _norm(x + y, w["norm_2.weight"], w["norm_2.bias"])
    return x
