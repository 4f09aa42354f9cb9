"""What cannot be packed: each message names the layer and says what to do."""

from typing import Any

import pytest
import torch
from torch import nn

import monotile
from monotile.errors import InputError

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "no such format": ({"format": "int3"}, r"'int3' is no format: there are int8, int4, .*mxfp8, and N:M or N:MxV, such as 2:4 and 8:32x64"),
    "group": ({"group": 64}, r"up \(8 × 96\) cannot be packed as int4: groups of 64 do not divide its 96 inputs: take group=48 .*where="),
    "default group": ({}, "groups of 128 do not divide its 96 inputs: take group=96"),
    "no group": ({"group": 0}, "group=0: give a number of neighbours, or None"),
    "block": ({"format": "mxfp4", "group": 64}, "mxfp4 has blocks of 32: leave group out"),
    "N of M": ({"format": "2:5"}, r"up \(8 × 96\) cannot be packed as 2:5: groups of 5 do not divide its 96 inputs"),
    "N over M": ({"format": "4:2"}, "4:2 is no format: N:M needs 0 < N < M <= 256"),
    "M too large": ({"format": "2:512"}, "0 < N < M <= 256"),
    "group of N of M": ({"format": "2:4", "group": 32}, "2:4 has no scales: leave group out"),
    "zero": ({"format": "nf4", "symmetric": False}, "nf4 has no zero to move: symmetric=False is for int8, int4, int2"),
    "zero of one bit": ({"format": "int1", "symmetric": False}, "int1 has no zero to move"),
    "nothing left": ({"where": ["down"]}, "nothing to pack: .*\n  up: left out by where"),
}  # fmt: skip


def model(inputs: int = 96) -> nn.Module:
    made = nn.Sequential()
    made.add_module("up", nn.Linear(inputs, 8))
    return made


@pytest.mark.parametrize("name", CASES)
def test_errors(name: str) -> None:
    arguments, message = CASES[name]
    with pytest.raises(InputError, match=message):
        monotile.pack(model(), **arguments)


def test_bytes_that_are_not_full() -> None:
    with pytest.raises(InputError, match=r"up \(8 × 97\) .*97 inputs do not fill bytes of 2 codes"):
        monotile.pack(model(97), group=None)
    with pytest.raises(InputError, match="blocks of 32 do not divide its 97 inputs"):
        monotile.pack(model(97), "mxfp8")


def test_weights_that_are_no_floats() -> None:
    made = model()
    whole = nn.Parameter(torch.ones(8, 96, dtype=torch.int8), requires_grad=False)
    made.get_submodule("up").register_parameter("weight", whole)
    with pytest.raises(InputError, match=r"up \(8 × 96\) has weights of torch.int8: only float32"):
        monotile.pack(made, group=32)


def test_weights_without_values() -> None:
    with pytest.raises(InputError, match=r"up .* has no values, as it is on the meta device"):
        monotile.pack(model().to("meta"), group=32)


def test_weights_that_are_not_finite() -> None:
    made = model()
    made.get_parameter("up.weight").data[3, 4] = torch.nan
    with pytest.raises(InputError, match=r"up .* has weights that are not finite"):
        monotile.pack(made, group=32)


def test_an_error_changes_nothing() -> None:
    made = nn.Sequential(nn.Linear(128, 8), nn.Linear(8, 8))
    with pytest.raises(InputError, match=r"1 \(8 × 8\)"):
        monotile.pack(made, inplace=True)
    assert all(isinstance(m, nn.Linear) for m in made)


def test_nothing_to_pack() -> None:
    with pytest.raises(InputError, match=r"nothing to pack: no nn.Linear"):
        monotile.pack(nn.Sequential(nn.ReLU()))
