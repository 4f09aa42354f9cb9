"""Rotary embeddings of a decoder's step: computed by the stage of the products whose elements they rotate, which writes the row of the cache too."""

from collections.abc import Callable

import msgspec
import pytest
import torch

from monotile.choice.chooser import Prefer
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.types import to_numpy
from monotile.generation.generator import generator
from monotile.generation.step import Step, iterated
from monotile.ir.program import state_names
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan
from monotile.plan.streams import streams
from monotile.plan.walk import stages_in
from monotile.runtime.tensors import from_numpy
from monotile.targets.cuda.emit import settle
from tests.codegen.emulate import COMPILER, emulate
from tests.codegen.emulate_model import Emulated
from tests.codegen.test_gemv_emulated import SMALL
from tests.conftest import wide
from tests.generation.test_generator import expected, prompt, random_model
from tests.models.accuracy import error

transformers = pytest.importorskip("transformers")
executorch = pytest.importorskip("transformers.integrations.executorch")
CAPACITY, WORDS, WORKERS = 16, 96, 8
TARGET = msgspec.structs.replace(
    SMALL,
    workers=WORKERS,
    barrier_seconds=3e-7,
    has=msgspec.structs.replace(SMALL.has, messages=False),
)
SIZES = {"vocab_size": WORDS, "hidden_size": 256, "num_attention_heads": 8, "num_hidden_layers": 2, "max_position_embeddings": 64}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2, "intermediate_size": 320}
CONFIGS: dict[str, Callable[[], object]] = {
    "halves": lambda: transformers.LlamaConfig(**GROUPED),
    "halves, two sequences": lambda: transformers.LlamaConfig(**GROUPED),
    "halves and biases": lambda: transformers.Qwen2Config(**GROUPED),
    "halves beside capped scores": lambda: transformers.Gemma2Config(head_dim=32, sliding_window=8, **GROUPED),
    "a part of heads": lambda: transformers.PhiConfig(intermediate_size=320, **SIZES),
    "a part of heads in one product": lambda: transformers.GPTNeoXConfig(intermediate_size=320, rotary_pct=0.5, **SIZES),
    "pairs": lambda: transformers.CohereConfig(bos_token_id=0, eos_token_id=0, **GROUPED),
    "pairs in a part of heads": lambda: transformers.GlmConfig(head_dim=32, pad_token_id=0, **GROUPED),
}  # fmt: skip
KINDS = ("halves, two sequences", "pairs in a part of heads")
FUSED = {
    "x @ w": lambda: transformers.GPT2Config(vocab_size=WORDS, n_embd=256, n_head=8, n_layer=2, n_positions=64),
    "halves, in one product": lambda: transformers.Phi3Config(pad_token_id=0, intermediate_size=320, **SIZES),
    "one head of keys": lambda: transformers.GPTBigCodeConfig(vocab_size=WORDS, n_embd=256, n_head=8, n_layer=2, n_positions=64),
    "fewer heads of keys": lambda: transformers.Phi3Config(pad_token_id=0, **GROUPED),
}  # fmt: skip


def sequences(name: str) -> int:
    return 2 if "two" in name else 1


def decoder(name: str, dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config((CONFIGS | FUSED)[name]())
    model = model.to(dtype).eval().requires_grad_(False)
    sizes = {"batch_size": sequences(name), "max_cache_len": CAPACITY}
    model.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", cache_config=sizes
    )
    return executorch.TorchExportableModuleWithStaticCache(model, device=torch.device("cpu"))


class Compiled:
    """The decoder for the emulator, with axes split or not; its states stay from call to call."""

    def __init__(self, name: str, dtype: torch.dtype, *, split: bool) -> None:
        self.options = Options(workers=WORKERS)
        chooser = Prefer("split axes", lambda value: value == split)
        captured = capture(decoder(name, dtype), (), tokens(name, 1)[0])
        program, constants = transform(captured.program, captured.constants, self.options)
        self.program, context = for_target(program, TARGET, chooser=chooser)
        plan = schedule(self.program, TARGET, self.options, context)
        self.plan, self.source = settle(self.program, plan, TARGET, self.options)
        verify(self.plan, self.program, TARGET)
        self.values = {n: to_numpy(x) for n, x in captured.parameters.items()} | dict(constants)

    def __call__(self, token: dict[str, torch.Tensor], seed: int) -> torch.Tensor:
        ids, position = (t.name for t in self.program.inputs)
        self.values |= {
            ids: to_numpy(token["input_ids"]),
            position: to_numpy(token["cache_position"]),
        }
        logits, *states = emulate(
            self.program, self.plan, self.source, self.values, late=seed % 2 == 0, seed=seed
        )
        parts = {w.tensor.name: w.parts for w in self.program.weights}
        stacked = {n: len(parts.get(n, (n,))) > 1 for n in self.program.states}
        rows = [
            r
            for n, x in zip(self.program.states, states, strict=True)
            for r in (x if stacked[n] else [x])
        ]
        self.values |= dict(zip(state_names(self.program), rows, strict=True))
        return from_numpy(logits)

    @property
    def barriers(self) -> int:
        return sum(s.handoff == "grid" for s in stages_in(self.plan.body))


def writers(plan: Plan) -> list[tuple[int, bool]]:
    """Of each stage that writes rows of caches: how many, and whether it streams weights."""
    stages = list(stages_in(plan.body))
    counts = [sum("index_copy" in n for x in s.steps for n in x.computes) for s in stages]
    return [(n, streams(s.steps[0])) for n, s in zip(counts, stages, strict=True) if n]


def tokens(name: str, count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, WORDS, (count, sequences(name), 1), generator=generator)
    return [{"input_ids": x, "cache_position": torch.tensor([k])} for k, x in enumerate(ids)]


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("name", [n if n in KINDS else wide(n) for n in CONFIGS])
def test_a_product_s_stage_rotates_and_writes_the_cache(name: str) -> None:
    before, fast = (Compiled(name, torch.float32, split=split) for split in (False, True))
    assert all(found == (1, False) for found in writers(before.plan))
    assert all(found == (2, True) for found in writers(fast.plan))
    assert fast.barriers < before.barriers
    right = decoder(name, torch.float64)
    for seed, token in enumerate(tokens(name, 3)):
        assert error(fast(token, seed), [right(**token)]) <= 1e-5


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("name", FUSED)
def test_one_product_of_queries_keys_and_values_writes_the_cache(name: str) -> None:
    fast, right = Compiled(name, torch.float32, split=True), decoder(name, torch.float64)
    assert all(found == (2, True) for found in writers(fast.plan))
    for seed, token in enumerate(tokens(name, 3)):
        assert error(fast(token, seed), [right(**token)]) <= 1e-5


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.wide
def test_generated_tokens_are_those_of_transformers() -> None:
    model = random_model(transformers.LlamaConfig(bos_token_id=None, eos_token_id=None, **GROUPED))
    lm = generator(model, 12, target="cpu", options=Options(cache=False))
    ids = prompt(3)
    right = expected(model, ids, 5)
    call = lm.call(ids[0], 5)
    fast = Emulated(Step(lm.decoder, 12).eval(), call, WORKERS, iterated(12), TARGET)
    assert (2, True) in writers(fast.plan)
    written, last, goes_on = fast(*call)
    assert written[: int(last) + 1].tolist() == right[0].tolist()
    assert not goes_on
