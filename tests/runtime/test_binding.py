"""A call may give by name what was compiled by place, and the other way round."""

from typing import Any

import pytest
import torch
from torch import nn

import monotile

T = torch.Tensor
X, Y = torch.randn(2, 3), torch.randn(2, 3)


class Model(nn.Module):
    def forward(self, a: T, b: T, scale: float = 2.0, *, mask: T | None = None, flag: bool = True) -> T:  # fmt: skip
        found = (a - b) * scale if flag else a + b
        return found if mask is None else found * mask


MODEL = Model().eval()
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X, Y), {}),
    ((X,), {"b": Y}),
    ((), {"b": Y, "a": X}),
    ((X, Y, 2.0), {}),
    ((X, Y), {"scale": 2.0, "mask": None}),
    ((X, Y), {"flag": True}),
]


@pytest.mark.parametrize("compiled_with", range(len(CALLS)))
def test_every_way_to_call(compiled_with: int) -> None:
    args, kwargs = CALLS[compiled_with]
    compiled = monotile.compile(MODEL, args, kwargs)
    for given, named in CALLS:
        torch.testing.assert_close(compiled(*given, **named), MODEL(*given, **named))


def test_what_is_no_such_call() -> None:
    compiled = monotile.compile(MODEL, (X, Y))
    with pytest.raises(
        monotile.InputError, match=r"flag was left out .* default True .* got False"
    ):
        compiled(X, Y, flag=False)
    with pytest.raises(monotile.InputError, match=r"mask was left out .* got a tensor"):
        compiled(X, Y, mask=X)
    with pytest.raises(monotile.InputError, match=r"scale was left out .* got 2"):
        compiled(X, Y, 2)  # an int: no float was compiled in
    for args, kwargs in (((X,), {}), ((X, Y), {"a": X}), ((X, Y), {"other": 1}), ((X, Y, 2.0, X), {})):  # fmt: skip
        with pytest.raises(monotile.InputError, match="the structure of the arguments differs"):
            compiled(*args, **kwargs)


def test_saved_and_loaded(tmp_path: Any) -> None:
    monotile.compile(MODEL, (X, Y)).save(tmp_path / "model")
    loaded = monotile.load(tmp_path / "model")
    torch.testing.assert_close(loaded(b=Y, a=X, flag=True), MODEL(X, Y))


def test_an_exported_program_keeps_its_call() -> None:
    compiled = monotile.compile(torch.export.export(MODEL, (X, Y)))
    torch.testing.assert_close(compiled(X, Y), MODEL(X, Y))
    with pytest.raises(monotile.InputError, match="structure"):
        compiled(X, b=Y)
