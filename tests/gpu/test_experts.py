"""Layers of experts on a GPU, in transformers' forms of them; one kernel for a range of tokens."""

import pytest
import torch
from torch.export import Dim

import monotile
from monotile.config import Options
from tests.models.accuracy import error
from tests.models.test_experts import FORMS, Layer, made, right

pytestmark = pytest.mark.gpu


def on_gpu(form: str, dtype: torch.dtype, tokens: int) -> tuple[Layer, torch.Tensor]:
    return made(form, dtype).cuda(), torch.randn(1, tokens, 64, dtype=dtype, device="cuda")


def agree(fast: monotile.CompiledModule, layer: Layer, x: torch.Tensor) -> None:
    """Where the router chooses alike: half a unit in the last place of a logit may choose another expert."""
    found, wanted = fast(x).double().cpu(), right(layer.cpu(), x.cpu())
    off = (found - wanted).abs().amax(-1) / wanted.abs().max()
    assert (off > 0.03).float().mean() < 0.03
    assert error(found[:, off[0] <= 0.03], [wanted[:, off[0] <= 0.03]]) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, 5, 40, 300])
@pytest.mark.parametrize("form", FORMS)
def test_small_layers_of_experts(form: str, tokens: int, dtype: torch.dtype) -> None:
    layer, x = on_gpu(form, dtype, tokens)
    fast = monotile.compile(layer, (x,))
    for seed in range(3):
        torch.manual_seed(seed)
        agree(fast, layer.cuda(), torch.randn_like(x))


@pytest.mark.parametrize("form", FORMS)
def test_small_open_numbers_of_tokens(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monotile.size_classes.MAX_SLOWDOWN", 0.0)  # kernels for all classes
    layer, x = on_gpu(form, torch.float16, 20)
    sizes = ({1: Dim("n", min=1, max=64)},)
    fast = monotile.compile(layer, (x,), options=Options(cache=False), dynamic_shapes=sizes)
    assert len(fast.classes) > 1
    for n in (1, 2, 9, 33, 64):
        agree(fast, layer.cuda(), torch.randn(1, n, 64, dtype=torch.float16, device="cuda"))
