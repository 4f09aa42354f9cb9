"""Packed experts: modules of transformers that hold the matrices of all experts in one parameter."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import monotile
from monotile.errors import InputError
from monotile.packing.stacks import PackedStack, is_experts
from tests.conftest import wide
from tests.packing.test_pack import report

SIZES: dict[str, Any] = {"vocab_size": 96, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
CONFIGS = {
    "olmoe": lambda: transformers.OlmoeConfig(
        **SIZES, intermediate_size=64, num_experts=4, num_experts_per_tok=2
    ),
    # Weights [in, out], interleaved, with biases.
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES, intermediate_size=64, num_local_experts=4, num_experts_per_tok=2, head_dim=32
    ),
}


def model(name: str) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]())
    for module in made.modules():
        if is_experts(module):
            for p in module.parameters(recurse=False):
                nn.init.normal_(p, std=0.1)
    return made.eval().requires_grad_(False)


def experts(made: nn.Module) -> list[nn.Module]:
    return [m for m in made.modules() if is_experts(m)]


def logits(made: nn.Module, ids: Tensor) -> Tensor:
    found: Tensor = made(ids, use_cache=False).logits
    return found


IDS = torch.arange(7)[None] * 5 % 96


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("format", ["int4", wide("int8"), wide("nf4"), wide("mxfp4"), wide("2:4")])
def test_packed_experts_are_those_with_decoded_weights(name: str, format: str) -> None:
    dense = model(name)
    group = 32 if format.startswith("int") else "default"
    packed = monotile.pack(dense, format, group, where=["*.experts"])
    for old, new in zip(experts(dense), experts(packed), strict=True):
        assert isinstance(new, type(old))
        for own in ("gate_up_proj", "down_proj"):
            stack = new.get_submodule(f"{own}_packed")
            assert isinstance(stack, PackedStack)
            assert own not in dict(new.named_parameters())
            old.get_parameter(own).copy_(getattr(new, own))
    torch.testing.assert_close(logits(packed, IDS), logits(dense, IDS), rtol=1e-4, atol=1e-5)


def test_the_model_shrinks_and_says_so() -> None:
    dense = model("olmoe")
    before = sum(p.numel() for p in dense.parameters())
    packed = monotile.pack(dense, "int8", 32)
    found = report(packed)
    shapes = {r.shape for r in found.rows if "experts" in r.name}
    assert shapes == {(4, 128, 128), (4, 128, 64)}
    assert not any("experts" in name for name in found.left)
    assert all(0 < (r.error or 0) < 0.02 for r in found.rows)
    assert found.after < found.before / 2.5
    assert sum(p.numel() for p in dense.parameters()) == before  # which is as it was


def test_in_place() -> None:
    dense = model("gpt_oss")
    monotile.pack(dense, "int4", 32, inplace=True)
    assert all(m.get_submodule("down_proj_packed") for m in experts(dense))
    assert experts(dense)[0].get_parameter("down_proj_bias").shape == (4, 128)


def test_copies_pickles_and_state_dicts() -> None:
    packed = monotile.pack(model("olmoe"), "int4", 32)
    right = logits(packed, IDS)
    assert torch.equal(logits(copy.deepcopy(packed), IDS), right)
    assert torch.equal(logits(pickle.loads(pickle.dumps(packed)), IDS), right)
    file = io.BytesIO()
    torch.save(packed.state_dict(), file)
    file.seek(0)
    other = monotile.pack(model("olmoe").requires_grad_(False), "int4", 32)
    for t in other.state_dict().values():
        t.zero_()
    other.load_state_dict(torch.load(file))
    assert torch.equal(logits(other, IDS), right)


def test_dtypes() -> None:
    packed = monotile.pack(model("olmoe"), "int8", 32).bfloat16()
    first = experts(packed)[0]
    assert first.gate_up_proj.dtype is torch.bfloat16
    assert first.get_submodule("gate_up_proj_packed").get_buffer("codes").dtype is torch.int8


def test_what_does_not_fit() -> None:
    dense = model("olmoe")
    with pytest.raises(InputError, match=r"experts.gate_up_proj \(4 × 128 × 128\).*do not divide"):
        monotile.pack(dense, "int4", 96, where=["*.experts"])
    experts(dense)[1].get_parameter("down_proj")[0, 0, 0] = float("nan")
    with pytest.raises(InputError, match=r"experts.down_proj .* not finite"):
        monotile.pack(dense, "int4", 32)
    left = report(monotile.pack(model("olmoe"), "int4", 32, where=["lm_head"])).left
    assert left["model.layers.0.mlp.experts.gate_up_proj"] == "left out by where"


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("target", ["cpu", wide("cuda:h200")])
def test_packed_experts_compile(name: str, target: str) -> None:
    packed = monotile.pack(model(name), "int4", 32)
    fast = monotile.compile(packed, (IDS,), {"use_cache": False}, target=target)
    if target == "cpu":
        torch.testing.assert_close(
            fast(IDS, use_cache=False).logits, logits(packed, IDS), rtol=1e-3, atol=1e-4
        )
