"""A call warns if the model has replaced parameters that its kernel reads."""

import copy
import gc
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import monotile
from monotile.runtime.replaced_parameters import EACH

X = torch.randn(3, 8)
SAID = "parameter .* was replaced .* load_parameters"


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).eval()


def assigned(m: nn.Module) -> None:
    m.load_state_dict(model().state_dict(), assign=True)


def with_other_data(m: nn.Module) -> None:
    m[0].weight.data = torch.randn(16, 8)


def with_another_parameter(m: nn.Module) -> None:
    m[3].bias = nn.Parameter(torch.randn(4))


@pytest.mark.parametrize("change", [assigned, with_other_data, with_another_parameter])
def test_a_replaced_parameter(change: Callable[[nn.Module], None]) -> None:
    m = model()
    compiled = monotile.compile(m, (X,))
    change(m)
    count = len([*m.parameters(), *m.buffers()])

    def calls() -> None:
        for _ in range(-(-count // EACH)):
            compiled(X)

    with pytest.warns(UserWarning, match=SAID) as said:
        calls()
    assert len(said) == 1
    assert said[0].filename == __file__
    compiled.load_parameters(m.state_dict())
    with warnings.catch_warnings(action="error"):
        for _ in range(count):
            torch.testing.assert_close(compiled(X), m(X))


def test_changes_in_place_are_seen_and_models_may_go() -> None:
    m = model()
    compiled = monotile.compile(m, (X,))
    with warnings.catch_warnings(action="error"):
        m.load_state_dict(model().state_dict())
        wanted = m(X)
        for _ in range(8):
            torch.testing.assert_close(compiled(X), wanted)
        again = copy.deepcopy(compiled)
        del m
        gc.collect()
        for _ in range(8):
            torch.testing.assert_close(compiled(X), wanted)
            torch.testing.assert_close(again(X), wanted)


@pytest.mark.parametrize("arranged", [False, True])
def test_a_reference_in_double_is_no_replacement(arranged: bool) -> None:
    """Once the model is back, its parameters are elsewhere: the kernel goes on with these, and sees what changes them in place."""
    m = model()
    options = monotile.Options(arrange_parameters=arranged)
    compiled = monotile.compile(m, (X,), options=options)
    wanted = m.double()(X.double())
    with warnings.catch_warnings(action="error"):
        for _ in range(8):
            torch.testing.assert_close(compiled(X).double(), wanted, rtol=1e-5, atol=1e-5)
        m.float()
        for _ in range(8):
            torch.testing.assert_close(compiled(X).double(), wanted, rtol=1e-5, atol=1e-5)
        if not arranged:  # which has copies of some
            m.load_state_dict(model().state_dict())
            torch.testing.assert_close(compiled(X), m(X))
