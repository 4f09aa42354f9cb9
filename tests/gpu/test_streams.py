"""Streamed weights on a GPU: more than its last-level cache holds, in layers, with normalisations in between."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import monotile
from monotile.kernels.gemv.method import Gemv, GemvColumns
from monotile.plan.nodes import Method
from monotile.plan.walk import stages_in
from tests.codegen.test_gemv_columns_emulated import Block
from tests.codegen.test_gemv_emulated import Network
from tests.codegen.test_gemv_looked_up_emulated import Experts, Logits
from tests.models.accuracy import error, exact

pytestmark = pytest.mark.gpu


def along() -> nn.Module:
    """Of matrices [n, k]."""
    return Network(3, 2048, 3072, 5001)


def across() -> nn.Module:
    """Of matrices [k, n]."""
    return nn.Sequential(*(Block(2048, 6000) for _ in range(3)))


@pytest.mark.parametrize("vectors", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("make", "method"), [(along, Gemv), (across, GemvColumns)])
def test_small_streams(
    make: Callable[[], nn.Module], method: type[Method], dtype: torch.dtype, vectors: int
) -> None:
    torch.manual_seed(0)
    model = make().to(dtype).eval()
    x = torch.randn(vectors, 2048).to(dtype)
    right = exact(model, (x,))
    with torch.no_grad():
        theirs = error(model(x), right)
    fast = monotile.compile(model.cuda(), (x.cuda(),))
    steps = [s for stage in stages_in(fast.plan.body) for s in stage.steps]
    assert any(isinstance(s.method, method) for s in steps)
    for _ in range(3):
        found = error(fast(x.cuda()).cpu(), right)
        assert found <= (1e-5 if dtype is torch.float32 else 1.5 * theirs)


def test_small_experts() -> None:
    """Whose weights are looked up, and their sums are split."""
    torch.manual_seed(1)
    model = nn.Sequential(*(Experts(1024, 3072, 2, across=True) for _ in range(3)))
    model = model.bfloat16().eval().requires_grad_(False)
    x = torch.randn(1, 1024).bfloat16()
    right = exact(model, (x,))
    theirs = error(model(x), right)
    fast = monotile.compile(model.cuda(), (x.cuda(),))
    assert "ring.hear()" in fast.source
    for _ in range(3):
        assert error(fast(x.cuda()).cpu(), right) <= 1.5 * theirs


@pytest.mark.parametrize("format", ["int4", "mxfp4"])
@pytest.mark.parametrize("kind", ["OlmoeConfig", "GptOssConfig"])
def test_small_experts_of_codes(format: str, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    sizes = {"hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 16, "vocab_size": 1000, "num_experts_per_tok": 2}  # fmt: skip
    experts = "num_experts" if kind == "OlmoeConfig" else "num_local_experts"
    config = getattr(transformers, kind)(**sizes, **{experts: 8})
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config).bfloat16()
    whole = Logits(monotile.pack(model.eval().requires_grad_(False), format, inplace=True))
    ids = torch.tensor([[5]], device="cuda")
    theirs = whole(ids)
    fast = monotile.compile(whole, (ids,))
    assert "ring.hear()" in fast.source
    found = fast(ids)
    right = [whole.float()(ids)]
    assert error(found, right) <= 1.5 * error(theirs, right)


@pytest.mark.parametrize("kind", ["GPT2Config", "Phi3Config"])
def test_tokens_of_one_product_for_queries_keys_and_values(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 16, "vocab_size": 30_000}  # fmt: skip
    more = {"num_key_value_heads": 4, "pad_token_id": 0, "intermediate_size": 4096}
    config = getattr(transformers, kind)(**sizes, **(more if kind == "Phi3Config" else {}))
    model = transformers.AutoModelForCausalLM.from_config(config)
    model = model.cuda().eval().requires_grad_(False)
    ids = torch.randint(0, 30_000, (1, 5), device="cuda")
    lm = monotile.generator(model, capacity=64)
    found = lm.generate(ids, max_new_tokens=24, eos_token_id=[])
    right = model.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)  # fmt: skip
    assert torch.equal(found, right)
