"""Pruned models: specialised kernels give what the dense ones do, and notice when a parameter loses its zeros."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn.utils import prune

import monotile
from monotile.config import Options
from monotile.errors import InputError
from monotile.runtime.accuracy import tensors
from monotile.runtime.parameter_values import gather
from tests.runtime.pruned_models import MODELS, bert, encoder, mlp, seeded

UNCACHED = Options(cache=False)


def assert_close(found: object, model: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    with torch.no_grad():
        for x, y in zip(tensors(found), tensors(model(*args)), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_results_stay(name: str) -> None:
    model, args, kept = seeded(MODELS[name])
    fast = monotile.compile(model, args, target="cpu", specialise=True, options=UNCACHED)
    assert_close(fast(*args), model, args)
    assert [(r.kept, r.of) for r in fast.specialised.removed] == kept
    dense, now = fast.specialised.multiply_adds
    assert now < dense
    assert fast.specialised.nbytes == sum(g.nbytes for g in fast.specialised.gathered.values())


def test_in_float64() -> None:
    model, args, _ = seeded(bert)
    model = model.double()
    fast = monotile.compile(model, args, target="cpu", specialise=True, options=UNCACHED)
    with torch.no_grad():
        for x, y in zip(tensors(fast(*args)), tensors(model(*args)), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["bert", "encoder", "resnet", "llama"])
def test_for_a_gpu(name: str) -> None:
    model, args, kept = seeded(MODELS[name])
    fast = monotile.compile(model, args, target="cuda:h100", specialise=True, options=UNCACHED)
    assert len(fast.specialised.removed) == len(kept)
    assert fast.cubin


def test_nothing_dead_compiles_as_ever() -> None:
    model, args, _ = seeded(mlp)
    for p in model.parameters():
        nn.init.normal_(p)
    fast = monotile.compile(model, args, target="cpu", specialise=True, options=UNCACHED)
    plain = monotile.compile(model, args, target="cpu", options=UNCACHED)
    assert fast.source == plain.source
    assert fast.plan == plain.plan
    assert str(fast.specialised) == "nothing was removed"
    model.get_parameter("0.weight").data.zero_()
    assert not plain.specialised.removed


def test_layers_still_roll() -> None:
    """The source does not grow with the depth."""
    sizes: list[int] = []
    for layers in (3, 6):
        model, args, _ = seeded(lambda n=layers: encoder(n))
        fast = monotile.compile(model, args, target="cpu", specialise=True, options=UNCACHED)
        assert len(fast.specialised.removed) == 2 * layers
        sizes.append(len(fast.source))
    assert sizes[1] < 1.05 * sizes[0]


def test_changes_that_keep_the_zeros_are_seen() -> None:
    model, args, _ = seeded(mlp)
    fast = monotile.compile(model, args, target="cpu", specialise=True, options=UNCACHED)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.mul_(1.5)
    assert_close(fast(*args), model, args)
    state = {k: v * 0.5 if v.dim() == 2 else v for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    assert_close(fast(*args), model, args)


def test_compiled_in_inference_mode() -> None:
    model, args, _ = seeded(mlp)
    with torch.inference_mode():
        fast = monotile.compile(model, args, target="cpu", specialise=True, options=UNCACHED)
        fast(*args)
    with torch.no_grad():
        model.get_parameter("2.weight").mul_(1.5)
    assert_close(fast(*args), model, args)


def test_parameters_that_count_no_changes() -> None:
    with torch.inference_mode():
        model, args, _ = seeded(mlp)
        fast = monotile.compile(model, args, target="cpu", specialise=True, options=UNCACHED)
        assert_close(fast(*args), model, args)
        model.get_parameter("2.weight").mul_(1.5)
        fast.load_parameters(model.state_dict())
        assert_close(fast(*args), model, args)


def test_changes_that_do_not_are_refused() -> None:
    model, args, _ = seeded(mlp)
    fast = monotile.compile(model, args, target="cpu", specialise=True, options=UNCACHED)
    weight = model.get_parameter("6.weight")
    before = weight.detach().clone()
    with torch.no_grad():
        weight.add_(1.0)
    for _ in range(2):
        with pytest.raises(InputError, match=r"parameter 6\.weight is no longer zero"):
            fast(*args)
    with torch.no_grad():
        weight.copy_(before)
    assert_close(fast(*args), model, args)


def test_values_of_vectors_are_relied_on_only_where_they_matter() -> None:
    model, args, _ = seeded(mlp)
    fast = monotile.compile(model, args, target="cpu", specialise=True, options=UNCACHED)
    bias = model.get_parameter("0.bias")
    with torch.no_grad():
        bias[-1] += 1.0
    assert_close(fast(*args), model, args)
    with torch.no_grad():
        bias[0] = 1.0
    with pytest.raises(InputError, match=r"parameter 0\.bias has other values"):
        fast(*args)


def test_other_parameters() -> None:
    model, args, _ = seeded(mlp)
    fast = monotile.compile(model, args, target="cpu", specialise=True, options=UNCACHED)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_parameter("2.weight").mul_(-2.0)
    fast.load_parameters(other.state_dict())
    assert_close(fast(*args), other, args)
    with torch.no_grad():
        other.get_parameter("2.weight").mul_(-2.0)
    assert_close(fast(*args), other, args)
    wrong = {"6.weight": torch.ones_like(other.get_parameter("6.weight"))}
    with pytest.raises(InputError, match=r"6\.weight"):
        fast.load_parameters(wrong)
    assert_close(fast(*args), other, args)


def test_a_saved_module(tmp_path: Path) -> None:
    model, args, _ = seeded(mlp)
    fast = monotile.compile(model, args, target="cpu", specialise=True, options=UNCACHED)
    fast.save(tmp_path / "model.monotile")
    again = monotile.load(tmp_path / "model.monotile")
    assert again.specialised == fast.specialised
    assert_close(again(*args), model, args)
    again.load_parameters(model.state_dict())
    with pytest.raises(InputError, match=r"6\.weight"):
        again.load_parameters({"6.weight": torch.ones(8, 64)})


def test_the_cache_tells_zeros_apart(tmp_path: Path) -> None:
    options = Options(cache_dir=str(tmp_path), specialise=True)
    model, args, _ = seeded(mlp)
    first = monotile.compile(model, args, target="cpu", options=options)
    again = monotile.compile(model, args, target="cpu", options=options)
    assert again.specialised == first.specialised
    assert_close(again(*args), model, args)
    with torch.no_grad():
        model.get_parameter("6.weight").normal_()
    other = monotile.compile(model, args, target="cpu", options=options)
    assert other.specialised != first.specialised
    assert_close(other(*args), model, args)


class _Running(nn.Module):
    """Features times a state, which is zero at first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 8)
        self.register_buffer("state", torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x) * self.state)
        self.get_buffer("state").add_(1.0)
        return y


def test_zeros_of_states_are_of_the_moment() -> None:
    model, x = _Running().eval(), torch.randn(4, 16)
    with torch.no_grad():
        model.second.weight[:, :32] = 0
    own = copy.deepcopy(model)
    fast = monotile.compile(own, (x,), target="cpu", specialise=True, options=UNCACHED)
    for _ in range(2):
        assert_close(fast(x), model, (x,))


def test_sizes_of_the_call() -> None:
    model, args, kept = seeded(encoder)
    shapes = ({0: Dim("batch", min=1, max=2), 1: Dim("length", min=1, max=16)},)
    fast = monotile.compile(
        model, args, target="cpu", specialise=True, dynamic_shapes=shapes, options=UNCACHED
    )
    assert [(r.kept, r.of) for r in fast.specialised.removed] == kept
    for x in (args[0], args[0][:1, :3]):
        assert_close(fast(x), model, (x,))


def test_torch_compile() -> None:
    model, args, _ = seeded(mlp)
    fast = torch.compile(model, backend="monotile", options={"specialise": True})
    with torch.no_grad():
        assert_close(fast(*args), model, args)
        model.get_parameter("6.weight").add_(1.0)
        assert_close(fast(*args), model, args)  # in PyTorch


def test_channels_last() -> None:
    model, args, _ = seeded(MODELS["resnet"])
    model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    for target in ("cpu", "cuda:h100"):
        fast = monotile.compile(model, args, target=target, specialise=True, options=UNCACHED)
        assert [d for d, _ in fast.specialised.gathered["1.second.weight"].kept] == [0]
        for name, relied in fast.specialised.relied.items():
            assert relied.shape == tuple(model.state_dict()[name].shape)
        for name, gathered in fast.specialised.gathered.items():
            assert gather(model.state_dict()[name], gathered).nbytes == gathered.nbytes


def test_ways_to_prune() -> None:
    """A mask that the graph itself applies."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8)).eval()
    prune.ln_structured(model[2], "weight", amount=0.5, n=2, dim=1)
    x = torch.randn(4, 16)
    fast = monotile.compile(model, (x,), target="cpu", specialise=True, options=UNCACHED)
    assert [(r.kept, r.of) for r in fast.specialised.removed] == [(32, 64)]
    assert_close(fast(x), model, (x,))
