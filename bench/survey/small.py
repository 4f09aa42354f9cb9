"""One rule makes any configuration of transformers small: 64 wide, two layers, four heads. And what such a model takes."""

from typing import Any

import torch
import transformers

WIDTH, LAYERS, HEADS, WORDS, TOKENS, PIXELS = 64, 2, 4, 512, 16, 64

_SIZES = (
    (WIDTH, "hidden_size d_model dim n_embd embed_dim hidden_dim emb_dim embedding_size projection_dim decoder_hidden_size"),
    (WIDTH, "encoder_hidden_size out_hidden_size model_dim hidden_channels encoder_hidden_dim n_embed"),
    (2 * WIDTH, "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff n_inner moe_intermediate_size ffn_hidden_size"),
    (2 * WIDTH, "feed_forward_size decoder_intermediate_size shared_expert_intermediate_size dim_feedforward intermediate_dim"),
    (WIDTH // HEADS, "head_dim d_kv attention_head_size dim_head attention_head_dim global_head_dim"),
    (LAYERS, "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers num_encoder_layers depth num_blocks"),
    (LAYERS, "num_decoder_layers encoder_num_hidden_layers decoder_num_hidden_layers num_block_records n_group"),
    (HEADS, "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads num_local_experts"),
    (HEADS, "encoder_num_attention_heads decoder_num_attention_heads num_experts n_routed_experts moe_num_experts"),
    (HEADS, "linear_num_value_heads"),
    (HEADS // 2, "num_key_value_heads num_experts_per_tok moe_topk num_experts_per_token encoder_num_key_value_heads top_k"),
    (HEADS // 2, "decoder_num_key_value_heads linear_num_key_heads moe_k"),
    (WIDTH // HEADS, "rotary_dim"),
    (1, "topk_group first_k_dense_replace"),
)  # fmt: skip
_SMALL = {name: size for size, names in _SIZES for name in names.split()}
_LAYERS = frozenset(
    n for size, names in _SIZES if size == LAYERS for n in names.split() if "layer" in n
)
_PER_LAYER = (
    "layer_types",
    "mlp_layer_types",
    "attention_types",
    "block_types",
    "layers_block_type",
)


# What the rule does not know, or the defaults lack.
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}
_OWN: dict[str, dict[str, Any]] = {
    "bamba": _MAMBA | {"attn_layer_indices": [1]},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "granitemoehybrid": _MAMBA | {"layer_types": ["linear_attention", "full_attention"]},
    "hunyuan_v1_dense": {"head_dim": WIDTH // HEADS},
    "hunyuan_v1_moe": {"head_dim": WIDTH // HEADS},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16},
    "ministral": {"head_dim": WIDTH // HEADS},
    "nemotron": {"num_key_value_heads": HEADS // 2},
}


def settings(kind: str) -> list[dict[str, Any]]:
    """What makes a configuration of a model type (a key of `CONFIG_MAPPING`) small, smaller first: where layers are listed one by one, their
    number may have to stay, and what follows from other numbers may have to be left to them."""
    whole = transformers.CONFIG_MAPPING[kind]().to_dict()
    every = []
    for layers in (LAYERS, None):
        values = _shrunk(whole, layers)
        every += [values, {n: x for n, x in values.items() if x != whole[n]}]
    return [values | _OWN.get(kind, {}) for values in every]


def config(kind: str, values: dict[str, Any]) -> Any:
    return transformers.CONFIG_MAPPING[kind](**values)


def _shrunk(values: dict[str, Any], layers: int | None) -> dict[str, Any]:
    """layers: how many at most; None: as many as there are."""
    out = {}
    for name, value in values.items():
        if isinstance(value, dict):
            out[name] = _shrunk(value, layers)
        elif (
            (layers is None and (name in _PER_LAYER or name in _LAYERS))
            or isinstance(value, bool)
            or (name == "head_dim" and "qk_rope_head_dim" in values)
        ):
            out[name] = value
        elif name == "num_key_value_heads" and value == values.get("num_attention_heads"):
            out[name] = HEADS
        elif name in _SMALL and isinstance(value, int):
            out[name] = min(value, _SMALL[name])
        elif name == "mrope_section" and isinstance(value, list):
            out[name] = [part * WIDTH // HEADS // 2 // sum(value) for part in value]
        elif name in _PER_LAYER and isinstance(value, list):
            out[name] = [value[0], value[-1]]
        elif str(name).startswith("vocab_size") and isinstance(value, int):
            out[name] = min(value, WORDS)
        elif str(name).endswith("_token_id") and isinstance(value, int):
            out[name] = value % WORDS
        elif name == "image_size" and isinstance(value, int):
            out[name] = max(PIXELS, 2 * _patch(values))
        else:
            out[name] = value
    return out


def _patch(values: dict[str, Any]) -> int:
    size = values.get("patch_size")
    return size if isinstance(size, int) else 16


def inputs(model: Any, it: Any) -> list[dict[str, torch.Tensor]]:
    """What the model may take, likelier first: words, words on both sides, an image, sound, features of sound."""
    words = {"input_ids": torch.randint(3, WORDS, (1, TOKENS))}
    side = getattr(getattr(it, "vision_config", it), "image_size", PIXELS)
    side = side if isinstance(side, int) else PIXELS
    image = {"pixel_values": torch.randn(1, getattr(it, "num_channels", 3) or 3, side, side)}
    sound = {"input_values": torch.randn(1, 4000)}
    bins = getattr(it, "num_mel_bins", 80) or 80
    frames = {"input_features": torch.randn(1, bins, 2 * getattr(it, "max_source_positions", 100))}
    lines = {
        "input_features": torch.randn(1, 64, getattr(it, "feature_projection_input_dim", bins))
    }
    both = words | {"decoder_input_ids": torch.randint(3, WORDS, (1, TOKENS))}
    decoded = {"decoder_input_ids": torch.randint(3, WORDS, (1, TOKENS))}
    every = [
        words,
        both,
        image,
        sound,
        words | image,
        frames,
        lines,
        frames | decoded,
        lines | decoded,
        image | decoded,
    ]
    first = getattr(model, "main_input_name", "input_ids")
    return sorted(every, key=lambda given: first not in given)
