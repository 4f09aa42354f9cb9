"""Fresh inputs and distances between answers."""

import pytest
import torch
from torch import nn

from monotile.runtime.reference import (
    call_of,
    distance,
    eager,
    eager_float64,
    random_inputs,
    runnable,
    to_device,
    tolerance,
)

INF, NAN = float("inf"), float("nan")


def test_fresh_inputs_are_of_the_examples_kind() -> None:
    example = call_of(
        (torch.randn(3, 4).half(), torch.arange(5, 50), "text"), {"mask": torch.zeros(2) > 1}
    )
    (x, ids, text), kwargs = random_inputs(example)
    assert (x.shape, x.dtype) == ((3, 4), torch.float16)
    assert ids.min() >= 5
    assert ids.max() < 50
    assert text == "text"
    assert kwargs["mask"].dtype == torch.bool
    assert not kwargs["mask"].any()  # an example of one value stays at it
    again = random_inputs(example)[0]
    assert torch.equal(again[0], x)
    assert not torch.equal(random_inputs(example, seed=1)[0][0], x)
    assert random_inputs(call_of((torch.empty(0, dtype=torch.int64),)))[0][0].numel() == 0


def test_float64_is_the_yardstick() -> None:
    model, x = nn.Linear(64, 64), torch.randn(8, 64)
    call = call_of((x,))
    exact = eager_float64(model, call)
    assert exact is not None
    assert exact.dtype == torch.float64
    assert model.weight.dtype == torch.float32
    assert 0 < distance(eager(model, call), exact).relative < tolerance(model, call)


def test_a_model_that_names_its_dtypes_has_no_float64() -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.float32) @ torch.ones(
                4, 4, dtype=torch.float64 if x.numel() == 0 else x.dtype
            )

    assert eager_float64(Named(), call_of((torch.randn(4, 4),))) is None


def test_exported_programs_run_too() -> None:
    model, call = nn.Linear(4, 4).eval(), call_of((torch.randn(2, 4),))
    exported = torch.export.export(model, *call)
    torch.testing.assert_close(eager(exported, call), eager(model, call))
    assert isinstance(runnable(exported), nn.Module)
    assert eager_float64(exported, call) is None
    assert tolerance(exported, call) == tolerance(model, call)
    assert to_device(exported, call, torch.device("cpu")) == (exported, call)


@pytest.mark.parametrize(
    ("found", "expected", "absolute", "relative", "equal"),
    [
        ([1.0, 4.0], [1.0, 5.0], 1.0, 0.2, True),
        ([INF, 1.0, NAN], [INF, 1.0, NAN], 0.0, 0.0, True),
        ([INF, 1.0], [-INF, 1.0], 0.0, 0.0, False),
        ([NAN, 1.0], [1.0, 1.0], NAN, NAN, False),
        ([0.5], [0.0], 0.5, 0.5, True),
        ([], [], 0.0, 0.0, True),
    ],
)
def test_distance(
    found: list[float], expected: list[float], absolute: float, relative: float, equal: bool
) -> None:
    d = distance(torch.tensor(found), torch.tensor(expected))
    assert d.equal is equal
    if equal:
        assert (d.absolute, d.relative) == pytest.approx((absolute, relative))


def test_distance_of_structures() -> None:
    x = torch.ones(2)
    assert distance({"a": x, "n": None}, {"a": x, "n": None}).equal
    assert not distance({"a": x}, [x]).equal
    assert not distance(x, torch.ones(3)).equal
    assert not distance(torch.tensor([1]), torch.tensor([2])).equal
