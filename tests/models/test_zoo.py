"""The models of bench/zoo, small: one kernel, PyTorch's answer, and a source that does not grow with depth."""

from typing import Any

import pytest

import monotile
from bench.zoo import Spec
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.pipeline import for_target, schedule, transform
from monotile.runtime.accuracy import error, exact
from monotile.runtime.objects import flatten_objects
from monotile.runtime.reference import random_inputs
from monotile.targets.cuda import emit as cuda
from monotile.targets.detect import detect_target
from monotile.transform.legalise.stack_results import stack_results
from tests.conftest import wide

pytest.importorskip("transformers")

TEXT = {"tokens": 16, "vocab_size": 96}
BERT = TEXT | {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
SMALL: dict[str, dict[str, Any]] = {
    "bert_large": BERT,
    "roberta_base": BERT,
    "clip_text": BERT,
    "t5_base": TEXT | {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2},
    "gpt2": TEXT | {"n_embd": 32, "n_head": 2},
    "opt_125m": TEXT | {"hidden_size": 32, "num_attention_heads": 2, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "llama_1b": BERT | {"num_attention_heads": 4, "num_key_value_heads": 2},
    "whisper_base": {"d_model": 32, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "max_source_positions": 20},
}  # fmt: skip
CASES = [
    *(Spec(name, arguments=size) for name, size in SMALL.items()),
    Spec("gpt2", arguments=SMALL["gpt2"] | {"use_cache": False}),
]


def name(spec: Spec) -> str:
    return spec.name + ("" if spec.arguments.get("use_cache", True) else "_without_cache")


def some(*further: str) -> list[Any]:
    """The models, those of these names wide."""
    return [wide(s) if s.name in further else s for s in CASES]


def deep(spec: Spec, layers: int) -> Spec:
    return Spec(spec.name, spec.dtype, spec.arguments | {"layers": layers})


@pytest.mark.parametrize("spec", some("roberta_base", "opt_125m"), ids=name)
def test_one_kernel_gives_pytorchs_answer(spec: Spec) -> None:
    model, call = deep(spec, 3).make()
    fast = monotile.compile(model, *call, target="cpu")
    assert fast.kernels == 1
    args, kwargs = random_inputs(call, seed=1)
    expected = exact(model, (args, kwargs))
    assert error(fast(*args, **kwargs), expected) <= 1e-5
    assert type(fast(*args, **kwargs)) is type(expected)


def source(spec: Spec) -> str:
    """For an H100, as `monotile.compile` makes it, but not built."""
    options = Options()
    target = detect_target("cuda:sm_90a", options)
    model, call = spec.make()
    captured = capture(export(model, *call, results=flatten_objects))
    program, _ = transform(captured.program, captured.constants, options, lambda *_: None)
    program, context = for_target(stack_results(program)[0], target)
    return cuda.emit(program, schedule(program, target, options, context), target, options).text


@pytest.mark.parametrize("spec", some("roberta_base", "opt_125m", "clip_text", "t5_base"), ids=name)
def test_source_does_not_grow_with_depth(spec: Spec) -> None:
    shallow, twice = (len(source(deep(spec, layers))) for layers in (4, 8))
    assert twice <= 1.05 * shallow
