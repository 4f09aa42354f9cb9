"""Decoders with transformers' static cache: each layer's keys and values are updated where they lie, by a loop over the layers."""

from collections.abc import Callable

import pytest
import torch

import monotile
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.types import to_numpy
from monotile.ir.program import state_names
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan
from monotile.plan.places import Pointer
from monotile.plan.walk import stages_in
from monotile.runtime.tensors import from_numpy
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen.emulate import COMPILER, emulate
from tests.conftest import wide

transformers = pytest.importorskip("transformers")
executorch = pytest.importorskip("transformers.integrations.executorch")
CAPACITY, WORDS = 16, 96
SIZES = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip
CONFIGS: dict[str, Callable[[int], object]] = {
    "llama": lambda n: transformers.LlamaConfig(num_hidden_layers=n, **SIZES),
    "qwen3": lambda n: transformers.Qwen3Config(num_hidden_layers=n, head_dim=16, **SIZES),
    "gpt2": lambda n: transformers.GPT2Config(
        vocab_size=WORDS, n_embd=32, n_layer=n, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
    ),
    "mistral": lambda n: transformers.MistralConfig(num_hidden_layers=n, sliding_window=8, head_dim=8, **SIZES),
    "gemma2": lambda n: transformers.Gemma2Config(
        num_hidden_layers=n, sliding_window=8, head_dim=8, query_pre_attn_scalar=8, **SIZES
    ),
}  # fmt: skip
TOKEN = {"input_ids": torch.tensor([[3]]), "cache_position": torch.tensor([0])}


def decoder(name: str, layers: int = 3) -> torch.nn.Module:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](layers))
    model = model.eval().requires_grad_(False)
    sizes = {"batch_size": 1, "max_cache_len": CAPACITY}
    model.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", cache_config=sizes
    )
    return executorch.TorchExportableModuleWithStaticCache(model, device=torch.device("cpu"))


def tokens(count: int) -> list[dict[str, torch.Tensor]]:
    ids = torch.randint(0, WORDS, (count, 1, 1), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": x, "cache_position": torch.tensor([k])} for k, x in enumerate(ids)]


@pytest.mark.parametrize("name", ["llama", "gpt2", wide("gemma2"), wide("qwen3"), wide("mistral")])
def test_tokens_one_after_the_other(name: str) -> None:
    ours, theirs = decoder(name), decoder(name)
    fast = monotile.compile(ours, (), TOKEN, target="cpu", options=monotile.Options(cache=False))
    for token in tokens(CAPACITY):
        torch.testing.assert_close(fast(**token), theirs(**token), rtol=1e-4, atol=1e-5)
    for (n, x), (_, y) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5, msg=n)


@pytest.mark.parametrize("name", ["llama", wide("gpt2")])
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_nothing_grows_with_depth(name: str, target: str) -> None:
    options = monotile.Options(cache=False, workers=2)
    plans, sources = list[Plan](), list[int]()
    for layers in (3, 6):
        fast = monotile.compile(decoder(name, layers), (), TOKEN, target=target, options=options)
        plans.append(fast.plan)
        sources.append(len(fast.source))
    assert sources[1] <= 1.05 * sources[0]
    few, many = (len(list(stages_in(p.body))) for p in plans)
    assert few == many
    assert plans[0].launch.workspace_bytes == plans[1].launch.workspace_bytes


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_on_the_emulator() -> None:
    ours, theirs = decoder("llama"), decoder("llama")
    captured, target = capture(ours, (), TOKEN), cuda_target("sm_90a")
    options = monotile.Options(workers=3)
    program, constants = transform(captured.program, captured.constants, options)
    program, context = for_target(program, target)
    plan = schedule(program, target, options, context)
    verify(plan, program, target)
    written = [t for s in stages_in(plan.body) for x in s.steps for t in x.computes]
    caches = [n for n in written if "index_copy" in n]
    assert caches
    assert all(isinstance(p, Pointer) for n in caches for p in plan.places[n])
    source = emit(program, plan, target, options)
    values = {n: to_numpy(x) for n, x in captured.parameters.items()} | dict(constants)
    ids, position = (t.name for t in program.inputs)
    for seed, token in enumerate(tokens(3)):
        values |= {ids: to_numpy(token["input_ids"]), position: to_numpy(token["cache_position"])}
        logits, *states = emulate(program, plan, source, values, late=seed % 2 == 0, seed=seed)
        right = theirs(**token)
        torch.testing.assert_close(from_numpy(logits).view_as(right), right, rtol=1e-4, atol=1e-5)
        parts = {w.tensor.name: w.parts for w in program.weights}
        rows = [r for n, x in zip(program.states, states, strict=True) for r in (x if len(parts.get(n, (n,))) > 1 else [x])]  # fmt: skip
        values |= dict(zip(state_names(program), rows, strict=True))
