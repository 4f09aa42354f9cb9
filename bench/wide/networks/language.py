"""Language models of transformers at the sizes of their base checkpoints: encoders of a text, and decoders that read a prompt."""

import importlib
from functools import partial
from typing import Any

import msgspec
from torch import Tensor, nn

from bench.wide.registry import DTYPES, NETWORKS, Network, Parts
from bench.zoo.weights import tokens_of


class Text(msgspec.Struct, frozen=True):
    """model, config: classes of transformers. sizes: what the published configuration has other than the library's default. dtypes: as `Network` has
    them."""

    title: str
    model: str
    config: str
    sizes: dict[str, Any] = {}
    tokens: int = 128
    dtypes: tuple[str, ...] = DTYPES


class Hidden(nn.Module):
    """A library's model whose only results are those of its first field, without a cache."""

    def __init__(self, model: nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids, **self.options)[0]


def of_transformers(text: Text, batch: int) -> Parts:
    hub: Any = importlib.import_module("transformers")
    config = getattr(hub, text.config)(**text.sizes)
    model = getattr(hub, text.model)(config)
    options = {"use_cache": False} if text.model.endswith("CausalLM") or "LMHead" in text.model else {}  # fmt: skip
    return Hidden(model, options), tokens_of(config.vocab_size, text.tokens, batch=batch)


SMOLLM: dict[str, Any] = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3: dict[str, Any] = {
    "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
}  # fmt: skip
PYTHIA: dict[str, Any] = {
    "vocab_size": 50304, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
}  # fmt: skip
ALBERT = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
DEBERTA: dict[str, Any] = {
    "vocab_size": 128100, "num_hidden_layers": 12, "relative_attention": True, "max_relative_positions": -1, "position_buckets": 256, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0,
}  # fmt: skip
T5 = {"vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12}  # fmt: skip
BART = {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12, "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}  # fmt: skip
XLNET = {"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072}

TEXTS = {
    "bert_base": Text("BERT-base, 128 tokens", "BertModel", "BertConfig"),
    "bert_base_384": Text("BERT-base, 384 tokens", "BertModel", "BertConfig", {}, 384),
    "albert_base": Text("ALBERT-base", "AlbertModel", "AlbertConfig", ALBERT),
    "deberta_v3_base": Text("DeBERTa-v3-base", "DebertaV2Model", "DebertaV2Config", DEBERTA | ALBERT),
    "mpnet_base": Text("MPNet-base", "MPNetModel", "MPNetConfig"),
    "mobilebert": Text("MobileBERT", "MobileBertModel", "MobileBertConfig"),
    "modernbert_base": Text("ModernBERT-base", "ModernBertModel", "ModernBertConfig", {}, 512),
    "xlnet_base": Text("XLNet-base", "XLNetModel", "XLNetConfig", XLNET),
    "funnel_base": Text("Funnel-base", "FunnelBaseModel", "FunnelConfig"),
    "fnet_base": Text("FNet-base", "FNetModel", "FNetConfig", dtypes=("float32",)),  # cuFFT wants powers of two in float16
    "t5_base_encoder": Text("T5-base encoder", "T5EncoderModel", "T5Config", T5),
    "bart_base": Text("BART-base", "BartModel", "BartConfig", BART),
    "gpt2": Text("GPT-2", "GPT2LMHeadModel", "GPT2Config"),
    "opt_125m": Text("OPT-125m", "OPTForCausalLM", "OPTConfig"),
    "pythia_160m": Text("Pythia-160m", "GPTNeoXForCausalLM", "GPTNeoXConfig", PYTHIA),
    "smollm_135m": Text("SmolLM-135M", "LlamaForCausalLM", "LlamaConfig", SMOLLM),
    "qwen3_0_6b": Text("Qwen3-0.6B, a prompt of 128", "Qwen3ForCausalLM", "Qwen3Config", QWEN3),
}  # fmt: skip
for _name, _text in TEXTS.items():
    _make = partial(of_transformers, _text)
    NETWORKS[_name] = Network(
        _text.title, "language", _make, library="transformers", dtypes=_text.dtypes
    )
