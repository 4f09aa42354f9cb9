"""The benchmark's pruned networks lose the share that is masked."""

import pytest
import torch
from transformers import BertConfig, BertModel, ViTConfig, ViTModel

import monotile
from bench.specialise import CASES, prune
from monotile.config import Options

SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
}


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_half_is_left(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "bert":
        model = BertModel(BertConfig(vocab_size=50, **SIZES))
        x = torch.zeros(1, 8, dtype=torch.int64)
    else:
        model = ViTModel(ViTConfig(image_size=32, patch_size=8, **SIZES))
        x = torch.randn(1, 3, 32, 32)
    prune(model, 0.5)
    options = Options(cache=False)
    fast = monotile.compile(model.eval(), (x,), target="cpu", specialise=True, options=options)
    assert [(r.kept, r.of) for r in fast.specialised.removed] == [(1, 2)] * 2 + [(64, 128)] * 2


def test_cases_say_what_is_pruned() -> None:
    assert all(0 < float(c.split(":")[1]) < 1 for c in CASES)
