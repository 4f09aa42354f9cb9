"""Checkpoints whose experts come in blocks of MXFP4, as GPT-OSS's."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

import monotile
from monotile.errors import InputError
from monotile.packing.stacks import PackedStack

EXPERTS, HIDDEN, INNER = 4, 64, 96


def model() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        vocab_size=48, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, num_local_experts=EXPERTS, num_experts_per_tok=2,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


def checkpoint(made: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors as a checkpoint has them, and as the model has them decoded, by the definition of the format."""
    g = np.random.default_rng(1)
    stored, dense = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in made.state_dict().items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = dense[name] = tensor.bfloat16()
            continue
        k, n = tensor.shape[1:]
        blocks = g.integers(0, 256, (EXPERTS, n, k // 32, 16), dtype=np.uint8)
        scales = g.integers(117, 123, (EXPERTS, n, k // 32), dtype=np.uint8)
        stored |= {name + "_blocks": torch.from_numpy(blocks), name + "_scales": torch.from_numpy(scales)}  # fmt: skip
        codes = np.stack((blocks & 15, blocks >> 4), -1).reshape(EXPERTS, n, k // 32, 32)
        values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
        exact = values * np.exp2(scales.astype(np.float32) - 127)[..., None]
        dense[name] = torch.from_numpy(exact.reshape(EXPERTS, n, k)).mT.bfloat16()
    return stored, dense


def test_experts_are_what_the_blocks_stand_for() -> None:
    stored, dense = checkpoint(model())
    loaded = monotile.load_packed(model(), stored)
    right = model().bfloat16()
    right.load_state_dict(dense)
    experts = loaded.get_submodule("model.layers.1.mlp.experts")
    assert isinstance(experts.get_submodule("down_proj_packed"), PackedStack)
    for name in ("gate_up_proj", "down_proj"):
        theirs = right.get_parameter(f"model.layers.1.mlp.experts.{name}")
        torch.testing.assert_close(getattr(experts, name), theirs, rtol=0, atol=0)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    torch.testing.assert_close(loaded(ids).logits, right(ids).logits)
    rows = {r.name: r.shape for r in loaded.packing.rows}
    assert rows["model.layers.0.mlp.experts.gate_up_proj"] == (EXPERTS, 2 * INNER, HIDDEN)


def test_it_compiles() -> None:
    loaded = monotile.load_packed(model(), checkpoint(model())[0]).float()

    def logits(ids: Tensor) -> Tensor:
        return loaded(ids, use_cache=False).logits

    ids = torch.tensor([[3, 1, 4]])
    whole = nn.Module()
    whole.inner, whole.forward = loaded, logits
    fast = monotile.compile(whole, (ids,), target="cpu", options=monotile.Options(cache=False))
    torch.testing.assert_close(fast(ids), logits(ids), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:, :-1], "_blocks is"),
        (lambda x: x.int(), "_blocks is torch.int32"),
    ],
)
def test_other_shapes_are_refused(change: Callable[[Tensor], Tensor], message: str) -> None:
    stored, _ = checkpoint(model())
    name = "model.layers.0.mlp.experts.down_proj_blocks"
    stored[name] = change(stored[name])
    untouched = model()
    with pytest.raises(InputError, match=message):
        monotile.load_packed(untouched, stored)
    assert "model.layers.0.mlp.experts.down_proj" in dict(untouched.named_parameters())


def test_experts_that_the_model_lacks() -> None:
    stored, _ = checkpoint(model())
    with pytest.raises(InputError, match=r"the model has no model\.layers\.0\.mlp\.experts"):
        monotile.load_packed(nn.Sequential(nn.Linear(4, 4)), stored)
