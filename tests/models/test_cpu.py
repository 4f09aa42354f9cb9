"""The three founding models at full size on the CPU, and what rolling promises about the source."""

import itertools

import pytest
import torch

import monotile
from tests.conftest import wide
from tests.models.accuracy import error, exact, example, fresh

pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["mmoe", "bert_base", "lstm", wide("lstm_unrolled")])
def test_one_native_function_agrees_with_float64(name: str) -> None:
    model, args = example(name, torch.float32)
    fast = monotile.compile(model, args, target="cpu")
    assert fast.kernels == 1
    assert fast.plan.launch.workers >= 1
    for seed in range(2):
        inputs = fresh(args, seed)
        assert error(fast(*inputs), exact(model, inputs)) <= 1e-5


DEPTHS = {
    "bert_base": ({"layers": 3}, {"layers": 6}),
    "lstm": ({"layers": 4, "steps": 15}, {"layers": 4, "steps": 30}),
    "lstm_unrolled": ({"layers": 4, "steps": 15}, {"layers": 4, "steps": 30}),
}
TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a")
GROWING = {("bert_base", "cpu"), ("lstm", "cuda:sm_90a")}  # tests/models/test_zoo.py has others


@pytest.mark.parametrize(
    ("name", "target"),
    [x if x in GROWING else wide(*x) for x in itertools.product(DEPTHS, TARGETS)],
)
def test_source_does_not_grow_with_depth(name: str, target: str) -> None:
    sizes = [
        len(monotile.compile(*example(name, torch.float32, **size), target=target).source)
        for size in DEPTHS[name]
    ]
    assert sizes[1] <= 1.05 * sizes[0]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("mmoe", torch.bfloat16),
        wide("lstm", torch.bfloat16),
        wide("lstm", torch.float16),
        wide("mmoe", torch.float16),
    ],
)
def test_sixteen_bit_types_err_no_more_than_eager(name: str, dtype: torch.dtype) -> None:
    model, args = example(name, dtype)
    fast = monotile.compile(model, args, target="cpu")
    inputs = fresh(args, 0)
    expected = exact(model, inputs)
    with torch.no_grad():
        eager = error(model(*inputs), expected)
    assert error(fast(*inputs), expected) <= 1.5 * eager
