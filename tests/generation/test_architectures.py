"""Caches of many kinds: heads of other widths, indexers, states of recurrences. And models that cannot write."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from monotile.errors import CaptureError
from monotile.generation.batch import BatchGenerator
from monotile.generation.generator import generator
from tests.conftest import wide
from tests.generation.test_generator import CHUNK, OPTIONS, WORDS, expected, prompt

transformers = pytest.importorskip("transformers")
CAPACITY = 40
SIZES: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}  # fmt: skip
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64}  # fmt: skip
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_d_ssm": 64}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12}  # fmt: skip
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1}  # fmt: skip
DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "head_dim": 16}  # fmt: skip
MIXED = {"layer_types": ["linear_attention", "full_attention"]}
CONFIGS: dict[str, Callable[[], Any]] = {
    "falcon": lambda: transformers.FalconConfig(num_attention_heads=4, **SIZES),  # one head of keys
    "deepseek_v3": lambda: transformers.DeepseekV3Config(**SIZES | HEADS | LATENT | EXPERTS | {"num_key_value_heads": 4}, first_k_dense_replace=1),
    "glm_moe_dsa": lambda: transformers.GlmMoeDsaConfig(**SIZES | HEADS | LATENT | EXPERTS | {"num_key_value_heads": 4}, first_k_dense_replace=1, index_topk=64, index_head_dim=16, index_n_heads=2),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SIZES | HEADS | {"num_hidden_layers": 13}, head_dim=16, sliding_window=8),  # 5 to 1, twice
    "gemma3n": lambda: transformers.Gemma3nTextConfig(
        **SIZES | HEADS | {"num_hidden_layers": 10, "intermediate_size": [64] * 10}, head_dim=16, sliding_window=8, num_kv_shared_layers=4, vocab_size_per_layer_input=WORDS,
        hidden_size_per_layer_input=8, laurel_rank=8, activation_sparsity_pattern=[0.5] * 10, layer_types=[*["sliding_attention"] * 4, "full_attention"] * 2,
    ),
    "roformer": lambda: transformers.RoFormerConfig(is_decoder=True, num_attention_heads=4, **SIZES),  # positions from a range that begins at a tensor
    "mamba": lambda: transformers.MambaConfig(state_size=8, **SIZES),
    "mamba2": lambda: transformers.Mamba2Config(state_size=8, num_heads=4, head_dim=16, n_groups=2, **SIZES),
    "falcon_h1": lambda: transformers.FalconH1Config(**SIZES | HEADS | MAMBA, head_dim=8),
    "bamba": lambda: transformers.BambaConfig(attn_layer_indices=[1], **SIZES | HEADS | MAMBA),
    "qwen3_next": lambda: transformers.Qwen3NextConfig(**SIZES | HEADS | DELTA | MIXED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32),
    "lfm2": lambda: transformers.Lfm2Config(**SIZES | HEADS, layer_types=["conv", "full_attention"]),
}  # fmt: skip


def model_of(name: str) -> nn.Module:
    """Such a model with random matrices; what else it has, decays and biases, as it is initialised."""
    return _random(transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()))


def _random(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for p in model.parameters():
        if p.dim() > 1:
            p.data = torch.randn_like(p) * 1.5 * p.shape[-1] ** -0.5
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize(
    "name",
    ["mamba", *(wide(n) for n in CONFIGS if n != "mamba")],
)
def test_greedy(name: str) -> None:
    model = model_of(name)
    lm = generator(model, CAPACITY, chunk=CHUNK, target="cpu", options=OPTIONS)
    for count in (1, CHUNK + 3, 2):  # a sequence sees nothing of the one before
        ids, more = prompt(count, count), CAPACITY - count - 12
        assert torch.equal(lm.generate(ids, more), expected(model, ids, more))
    new = prompt(10, 7)
    begun = lm.generate(ids, 3)
    right = expected(model, torch.cat((begun, new), 1), 6)
    assert torch.equal(lm.generate(new, 6, follow=True), right)


class Renamed(transformers.MambaForCausalLM):
    """With its cache as `cache`, as Mamba's is called from transformers 5.24 on."""

    def forward(self, input_ids: torch.Tensor, cache: Any = None, **given: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(input_ids, cache_params=cache, **given)


@pytest.mark.wide
def test_a_cache_of_another_name() -> None:
    model, plain = Renamed(CONFIGS["mamba"]()), model_of("mamba")
    model.load_state_dict(plain.state_dict())
    lm = generator(model.eval().requires_grad_(False), CAPACITY, chunk=1, target="cpu", options=OPTIONS)  # fmt: skip
    ids = prompt(5, 5)
    assert torch.equal(lm.generate(ids, 9), expected(plain, ids, 9))


@pytest.mark.parametrize("name", [wide("mamba"), wide("falcon_h1"), wide("qwen3_next")])
def test_sequences_with_states(name: str) -> None:
    model = model_of(name)
    lm = generator(model, CAPACITY, batch=3, chunk=CHUNK, target="cpu", options=OPTIONS)
    assert isinstance(lm, BatchGenerator)
    for lengths in ((3, 11, 7), (5, 2)):
        ids = [prompt(n, n)[0] for n in lengths]
        found = lm.generate(ids, 9)
        for row, x in zip(found, ids, strict=True):
            right = expected(model, x[None], 9)[0]
            assert torch.equal(row[len(row) - len(right) :], right)


@pytest.mark.parametrize("name", ["falcon_h1"])
@pytest.mark.parametrize("cache", [wide("int8"), wide("fp8")])
def test_packed_keys_beside_states(name: str, cache: str) -> None:
    model = model_of(name)
    lm = generator(model, CAPACITY, chunk=1, cache=cache, target="cpu", options=OPTIONS)
    assert lm.generate(prompt(5), 6).shape == (1, 11)


def test_a_model_that_is_not_causal() -> None:
    config = transformers.BertConfig(**SIZES | HEADS)
    with pytest.raises(CaptureError, match=r"BertLMHeadModel is not causal.*is_decoder"):
        generator(_random(transformers.BertLMHeadModel(config)), 12)


class Forgetful(nn.Module):
    """Has a state of its own, which a static cache knows nothing of."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.config = model, model.config
        self.seen = torch.zeros(())

    def forward(self, input_ids: torch.Tensor, **given: object) -> object:
        self.seen = self.seen + 1
        return self.model(input_ids=input_ids, **given)


def test_a_state_that_is_no_cache() -> None:
    config = transformers.LlamaConfig(**SIZES | HEADS)
    with pytest.raises(CaptureError, match=r"state of its own, \.seen"):
        generator(Forgetful(transformers.LlamaForCausalLM(config)).eval(), 12)
