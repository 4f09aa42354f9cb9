"""The benchmark's pruned networks lose the share that is masked."""

import torch
from transformers import BertConfig, BertModel

import monotile
from bench.specialise import CASES, prune
from monotile.config import Options


def test_half_is_left() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=50
    )  # fmt: skip
    model = BertModel(config).eval()
    prune(model, 0.5)
    fast = monotile.compile(
        model, (torch.zeros(1, 8, dtype=torch.int64),), target="cpu", specialise=True, options=Options(cache=False)
    )  # fmt: skip
    assert {(r.kept, r.of) for r in fast.specialised.removed} == {(1, 2), (64, 128)}


def test_cases_say_what_is_pruned() -> None:
    assert all(0 < float(c.split(":")[1]) < 1 for c in CASES)
