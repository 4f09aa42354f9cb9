"""A model that cannot be captured says which line is why, and what to do."""

from collections.abc import Callable
from pathlib import Path

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import nn

import monotile
from monotile.errors import CaptureError, UnsupportedOperatorError
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.origin import (
    _OWN,  # pyright: ignore[reportPrivateUsage]
    is_users,
)
from monotile.frontends.torch.sizes.guards import PATHS


class Call(nn.Module):
    def __init__(self, f: Callable[..., object]) -> None:
        super().__init__()
        self.f = f
        self.register_buffer("count", torch.zeros(1))

    def forward(self, *args: torch.Tensor) -> object:
        return self.f(*args)


X = torch.randn(3, 4)


def test_no_line_of_ours_is_the_users() -> None:
    """Of what runs between a model and PyTorch; tests and generation are code as a user's."""
    root = Path(monotile.__file__).parent
    front = root / "frontends" / "torch"
    ours = (root / "dynamo" / "backend.py", front / "branches" / "markers.py", *front.glob("loops/*.py"))  # fmt: skip
    named = (*map(str, ours), *_OWN, PATHS)
    assert all(Path(path).exists() and not is_users(path) for path in named)
    assert is_users(__file__)
    assert not is_users(sympy.__file__), "PyTorch computes sizes by it"


def test_all_unsupported_operators_in_one_message() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = torch.geqrf(x).a  # first
            e = torch.special.airy_ai(x.mT @ x)  # second
            return q.sum() + torch.relu(e).sum()

    with pytest.raises(UnsupportedOperatorError) as caught:
        capture(Model(), (X,))
    message = str(caught.value)
    assert "2 operators" in message
    assert "aten.geqrf.default of float32[3, 4], at test_errors.py:" in message
    assert "in forward: q = torch.geqrf(x).a  # first" in message
    assert "special_airy_ai" in message
    assert "# second" in message
    assert "outside the compiled part" in message


def test_a_distribution_that_is_not_supported() -> None:
    with pytest.raises(UnsupportedOperatorError, match="poisson"):
        capture(Call(lambda x: x + torch.poisson(x.abs())), (X,))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)),
        nn.BatchNorm1d(4),
        Call(lambda x: F.dropout(x)),
        Call(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)),
        nn.LSTM(4, 4, 2, dropout=0.3),
    ],
)
def test_training_mode(model: nn.Module) -> None:
    with pytest.raises(CaptureError, match=r"model\.eval\(\)"):
        capture(model.train(), (X,))


def test_training_mode_without_training_operators_is_fine() -> None:
    capture(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)).train(), (X,))


def test_data_dependent_shape() -> None:
    with pytest.raises(CaptureError, match=r"aten._unique2.* makes .*test_errors\.py:\d+"):
        capture(Call(lambda x: torch.unique(x).sum()), (X,))


def test_data_dependent_number() -> None:
    with pytest.raises(CaptureError, match=r"test_errors\.py:\d+.*torch\.where"):
        capture(Call(lambda x: [x] * int(x.sum())), (X,))
    with pytest.raises(CaptureError, match=r"makes a number or a shape from a tensor"):
        capture(Call(lambda x: x.clone().fill_diagonal_(x.sum().item())), (X,))


def test_a_size_that_nothing_bounds() -> None:
    with pytest.raises(CaptureError, match=r"repeat_interleave.* nothing bounds it: pass it .*output_size"):  # fmt: skip
        capture(Call(lambda x: x.repeat_interleave(x[0].long(), 1)), (X,))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.torch.jit:FutureWarning")
def test_torchscript() -> None:
    with pytest.raises(CaptureError, match="no TorchScript: pass the module that it was made of"):
        capture(torch.jit.trace(Call(lambda x: x * 2), X), (X,))
    with pytest.raises(CaptureError, match=r"0 is TorchScript, .*: put the module there"):
        capture(nn.Sequential(torch.jit.script(nn.Linear(3, 3)), nn.ReLU()), (X,))


def test_errors_of_the_model_keep_their_cause() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x @ x  # shapes do not fit

    with pytest.raises(CaptureError, match=r"test_errors\.py:\d+, in wrong: .*# shapes") as caught:
        capture(Call(wrong), (X,))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_an_update_of_elements_that_share_memory() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        windows = x.clone().unfold(-1, 2, 1)
        windows[torch.tensor([0])] = 1.0
        return windows

    with pytest.raises(CaptureError, match=r"updates windows of a tensor.*test_errors\.py:\d+"):
        capture(Call(wrong), (X,))


def test_dynamic_shapes() -> None:
    batch = torch.export.Dim("batch", min=2, max=8)
    exported = torch.export.export(nn.Linear(4, 4), (X,), dynamic_shapes=({0: batch},))
    given, size = capture(exported).program.inputs
    assert (given.shape, size.shape) == ((8, 4), ())
    free = torch.export.export(nn.Linear(4, 4), (X,), dynamic_shapes=({0: torch.export.Dim("n")},))
    with pytest.raises(CaptureError, match="no upper bound"):
        capture(free)
    with pytest.raises(CaptureError, match="names dimension 2 of a tensor that has 2 dimensions"):
        monotile.compile(nn.Linear(4, 4).eval(), (X,), dynamic_shapes=({2: batch},))


def test_complex_numbers() -> None:
    with pytest.raises(
        UnsupportedOperatorError, match=r"(?s)acos.*of complex numbers.*test_errors\.py"
    ):
        capture(Call(lambda x: torch.fft.fft(x).acos().real), (X,))


def test_a_choice_by_a_tensors_value() -> None:
    with pytest.raises(CaptureError, match=r'test_errors\.py.*torch\.where.*backend="monotile"'):
        capture(Call(lambda x: sum(x for _ in range(int(x.sum())))), (X,))
    with pytest.raises(CaptureError, match=r"test_errors\.py.*a number that a tensor has.*mask it"):
        capture(Call(lambda x: x[: int(x.sum()) : 2]), (X,))


def test_unknown_object_in_the_result() -> None:
    class Box:
        pass

    with pytest.raises(CaptureError, match=r"torch\.export cannot capture"):
        capture(Call(lambda x: Box()), (X,))


def test_results_on_another_device() -> None:
    with pytest.raises(CaptureError, match=r"makes zeros on meta, its inputs are on cpu.*move it"):
        capture(Call(lambda x: (torch.zeros(3, device="meta"), x + 1)), (X,))
