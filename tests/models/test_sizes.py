"""Architectures of which one capture serves a range of lengths, at every length of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.export import Dim

from tests.conftest import wide
from tests.frontend.sized import check

TINY: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip
GROUPED = TINY | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


class Of(nn.Module):
    """One result of a model of transformers."""

    def __init__(self, model: nn.Module, result: str, **given: Any) -> None:
        super().__init__()
        self.model, self.result, self.given = model, result, given

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(x, **self.given), self.result)


def bert() -> nn.Module:
    return Of(transformers.BertModel(transformers.BertConfig(**TINY)), "last_hidden_state")


def roberta() -> nn.Module:
    c = transformers.RobertaConfig(**TINY, max_position_embeddings=40)
    return Of(transformers.RobertaModel(c), "last_hidden_state")


def distilbert() -> nn.Module:
    c = transformers.DistilBertConfig(vocab_size=60, dim=16, hidden_dim=24, n_layers=2, n_heads=2)
    return Of(transformers.DistilBertModel(c), "last_hidden_state")


def electra() -> nn.Module:
    c = transformers.ElectraConfig(**TINY, embedding_size=8)
    return Of(transformers.ElectraModel(c), "last_hidden_state")


def gpt2() -> nn.Module:
    c = transformers.GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2)
    return Of(transformers.GPT2LMHeadModel(c), "logits", use_cache=False)


def opt() -> nn.Module:
    c = transformers.OPTConfig(vocab_size=60, hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=16)  # fmt: skip
    return Of(transformers.OPTForCausalLM(c), "logits", use_cache=False)


def llama() -> nn.Module:
    return Of(transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)), "logits", use_cache=False)  # fmt: skip


def qwen3() -> nn.Module:
    return Of(transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**GROUPED)), "logits", use_cache=False)  # fmt: skip


def gemma2() -> nn.Module:
    c = transformers.Gemma2Config(**GROUPED, query_pre_attn_scalar=8, sliding_window=8)
    return Of(transformers.Gemma2ForCausalLM(c), "logits", use_cache=False)


def t5() -> nn.Module:
    c = transformers.T5Config(vocab_size=60, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
    return Of(transformers.T5EncoderModel(c), "last_hidden_state")


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False)  # fmt: skip


def speech() -> nn.Module:
    """A stack of dilated convolutions over time."""
    return nn.Sequential(*(layer for d in (1, 2, 4) for layer in (nn.Conv1d(16, 16, 3, padding=d, dilation=d), nn.GroupNorm(1, 16), nn.PReLU())))  # fmt: skip


def ids(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randint(3, 60, (1, n), generator=torch.Generator().manual_seed(n)),)


def rows(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(1, n, 16, generator=torch.Generator().manual_seed(n)),)


def waves(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(1, 16, n, generator=torch.Generator().manual_seed(n)),)


Make = Callable[[], nn.Module]
Given = Callable[[int], tuple[torch.Tensor, ...]]


@pytest.mark.parametrize(
    ("make", "given", "dim"),
    [
        (bert, ids, 1), (gpt2, ids, 1), (llama, ids, 1), (t5, ids, 1), (encoder, rows, 1), (speech, waves, 2),
        *(wide(make, ids, 1) for make in (roberta, distilbert, electra, opt, qwen3, gemma2)),
    ],
)  # fmt: skip
def test_every_length(make: Make, given: Given, dim: int) -> None:
    torch.manual_seed(0)
    model = make().eval().requires_grad_(False)
    sizes = [(n,) for n in range(1, 21)]
    check(model, given, ({dim: Dim("length", min=1, max=20)},), sizes)


class Chunks(nn.Module):
    """Means of eight rows each."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        return self.linear(x.view(b, n // 8, 8, c).mean(2))


@pytest.mark.parametrize(
    ("make", "times", "more"), [(Chunks, 8, 0), (encoder, 2, 1), (encoder, 3, -1)]
)
def test_a_length_that_is_computed_from_another(make: Make, times: int, more: int) -> None:
    """From its least value on, which PyTorch itself does not say of the symbol."""
    n = Dim("n", min=1, max=9)

    def given(k: int) -> tuple[torch.Tensor, ...]:
        return rows(times * k + more)

    torch.manual_seed(0)
    model = make().eval().requires_grad_(False)
    sizes = [(k,) for k in range(1, 10)]
    check(model, given, ({1: times * n + more if more else times * n},), sizes)
