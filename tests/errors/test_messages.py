"""What a user is told, from `monotile.compile` to the call: what, where and what to do."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

import monotile
from monotile.errors import InternalError, MonotileError

X = torch.randn(2, 4)


def of(function: Callable[..., object]) -> nn.Module:
    """A module whose forward is `function`."""

    class Model(nn.Module):
        def forward(self, *args: torch.Tensor) -> object:
            return function(*args)

    return Model().eval()


def refusal(model: nn.Module, *args: object) -> tuple[type[Exception], str]:
    with pytest.raises(MonotileError) as caught:
        monotile.compile(model, args or (X,), target="cpu", options=monotile.Options(cache=False))
    return caught.type, str(caught.value)


def test_every_unsupported_operator_in_one_message_with_the_users_line() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = torch.special.airy_ai(x @ x.mT)
        return torch.geqrf(y).tau  # the second

    kind, words = refusal(of(forward))
    assert kind is monotile.UnsupportedOperatorError
    assert "geqrf" in words
    assert "special_airy_ai" in words
    assert len(re.findall(r"test_messages\.py:\d+", words)) >= 2
    assert "# the second" in words or "geqrf(y)" in words


def test_training_mode() -> None:
    kind, words = refusal(nn.Sequential(nn.Linear(4, 4), nn.Dropout()).train())
    assert kind is monotile.CaptureError
    assert "eval()" in words


def test_control_flow_on_values() -> None:
    kind, words = refusal(of(lambda x: x.flatten() if x.sum() > 0 else x))
    assert kind is monotile.CaptureError
    assert "test_messages.py" in words


def test_a_shape_that_depends_on_values() -> None:
    kind, words = refusal(of(lambda x: torch.unique(x)))
    assert issubclass(kind, MonotileError)
    assert "test_messages.py" in words


def test_a_changed_buffer_that_shares_memory() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("all", torch.zeros(4))
            self.register_buffer("part", self.all[:2])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.all.add_(1)
            return x[:, :2] + self.part

    kind, words = refusal(Views().eval())
    assert kind is monotile.CaptureError
    assert "shares memory" in words


def test_a_mistake_in_the_model_itself() -> None:
    kind, words = refusal(of(lambda x: x @ x))
    assert kind is monotile.CaptureError
    assert "test_messages.py" in words


def test_unknown_targets_and_options() -> None:
    with pytest.raises(monotile.TargetError, match='unknown target "gpu"'):
        monotile.compile(of(torch.relu), (X,), target="gpu")
    with pytest.raises(TypeError):
        monotile.Options(fastmath=True)


def test_a_call_that_does_not_fit() -> None:
    fast = monotile.compile(of(torch.relu), (X,), target="cpu")
    with pytest.raises(monotile.InputError, match=r"args\[0\]: expected \[2, 4\] float32 on cpu"):
        fast(torch.randn(3, 4))


def test_an_index_out_of_range_names_the_tensor_and_the_line() -> None:
    model = nn.Embedding(10, 4).eval()
    fast = monotile.compile(model, (torch.tensor([1, 2]),), target="cpu")
    for bad in (10, -11, 1 << 40):
        with pytest.raises(monotile.IndexOutOfRangeError, match=r"10"):
            fast(torch.tensor([1, bad]))
    torch.testing.assert_close(fast(torch.tensor([3, 9])), model(torch.tensor([3, 9])))


def test_a_users_mistake_is_no_mistake_of_ours() -> None:
    assert not issubclass(InternalError, MonotileError)
    assert issubclass(monotile.InputError, ValueError)
    assert issubclass(monotile.IndexOutOfRangeError, IndexError)
