"""Causal language models of transformers in the sizes of published checkpoints, with random weights: what differs from each type's default
configuration, from the checkpoint's config.json."""

from typing import Any

import torch
import transformers

from bench.zoo.weights import build

TIED = {"tie_word_embeddings": True}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    # Dense, with rotary positions and grouped queries.
    "qwen2_5_0_5b": ("Qwen2", {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2} | TIED),
    "qwen3_0_6b": ("Qwen3", {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128} | TIED),
    "qwen3_1_7b": ("Qwen3", {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128} | TIED),
    "smollm2_135m": ("Llama", {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192} | TIED),
    "smollm3_3b": ("SmolLM3", {}),
    "llama_8b": ("Llama", {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192}),
    "granite_2b": ("Granite", {"vocab_size": 49155, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.22, "logits_scaling": 8.0} | TIED),
    "exaone4_1_2b": ("Exaone4", {"vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 4096, "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 8} | TIED),
    "ernie4_5_0_3b": ("Ernie4_5", {"vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128} | TIED),
    "starcoder2_3b": ("Starcoder2", {}),
    "olmo2_1b": ("Olmo2", {"vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 4096}),
    "stablelm2_1_6b": ("StableLm", {"vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 32, "use_qkv_bias": True}),
    "phi3_mini": ("Phi3", {}),
    "phi_1_5": ("Phi", {}),
    # Dense, with windows or other positions.
    "gemma2_2b": ("Gemma2", {}),
    "gemma3_270m": ("Gemma3Text", {"vocab_size": 262144, "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512, "query_pre_attn_scalar": 256, "max_position_embeddings": 32768} | TIED),
    "gemma3_1b": ("Gemma3Text", {"vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512, "query_pre_attn_scalar": 256, "max_position_embeddings": 32768} | TIED),
    "opt_1_3b": ("OPT", {"hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24, "num_attention_heads": 32, "word_embed_proj_dim": 2048}),
    "pythia_1_4b": ("GPTNeoX", {"vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24, "num_attention_heads": 16}),
    "bloom_560m": ("Bloom", {"vocab_size": 250880, "hidden_size": 1024, "n_layer": 24, "n_head": 16}),
    "codegen_350m": ("CodeGen", {"vocab_size": 51200, "n_embd": 1024, "n_layer": 20, "n_head": 16, "rotary_dim": 32}),
    "biogpt": ("BioGpt", {}),
    # Mixtures of experts.
    "granite_moe_1b": ("GraniteMoe", {"vocab_size": 49155, "hidden_size": 1024, "intermediate_size": 512, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 8, "num_local_experts": 32, "num_experts_per_tok": 8} | TIED),
    "olmoe_7b": ("Olmoe", {"num_hidden_layers": 16, "intermediate_size": 1024}),
    "qwen_moe_14b": ("Qwen2Moe", {"vocab_size": 151936, "num_hidden_layers": 24, "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632}),
    "deepseek_v2_lite": ("DeepseekV2", {"vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1}),
    "gpt_oss_20b": ("GptOss", {"num_hidden_layers": 24, "num_local_experts": 32}),
    # With states of recurrences.
    "mamba_1_4b": ("Mamba", {"vocab_size": 50280, "hidden_size": 2048, "num_hidden_layers": 48}),
    "mamba2_1_3b": ("Mamba2", {"vocab_size": 50288, "hidden_size": 2048, "num_hidden_layers": 48, "num_heads": 64, "head_dim": 64, "n_groups": 1}),
    "falcon_h1_0_5b": ("FalconH1", {"vocab_size": 32784, "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64, "mamba_d_state": 128}),
    "lfm2_1_2b": ("Lfm2", {"vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "block_ff_dim": 12288, "layer_types": ["full_attention" if k in (2, 5, 8, 10, 12, 14) else "conv" for k in range(16)]} | TIED),
}  # fmt: skip


def causal(name: str, dtype: torch.dtype, **changes: Any) -> torch.nn.Module:
    """The model with weights in `dtype` on the current device, in eval mode. changes: of its configuration."""
    kind, fields = SHAPES[name]
    config = getattr(transformers, f"{kind}Config")(**fields | changes)
    return build(lambda: transformers.AutoModelForCausalLM.from_config(config, dtype=dtype), dtype)
