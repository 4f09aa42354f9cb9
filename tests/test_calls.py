"""What may be given to a compiled model and what comes back: as the model itself, or a clear refusal."""

import collections
import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn

import monotile
from monotile.config import Options

OPTIONS = Options(cache=False)
X = torch.randn(3, 4)


class Model(nn.Module):
    def __init__(self, f: Callable[..., object]) -> None:
        super().__init__()
        self.f = f
        self.linear = nn.Linear(4, 4)

    def forward(self, *args: Any, **kwargs: Any) -> object:
        return self.f(self, *args, **kwargs)


@dataclasses.dataclass
class Pair:
    y: torch.Tensor
    z: object


class Named(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


def check(
    model: nn.Module,
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    call: Sequence[object] | None = None,
) -> monotile.CompiledModule:
    """Compiles for `args` and compares a call with `call`, or with `args` again."""
    model, kwargs = model.eval(), kwargs or {}
    fast = monotile.compile(model, args, kwargs, target="cpu", options=OPTIONS)
    with torch.no_grad():
        found, wanted = fast(*(call or args), **kwargs), model(*(call or args), **kwargs)
    a, b = pytree.tree_flatten(found), pytree.tree_flatten(wanted)
    assert a[1] == b[1]
    for x, y in zip(a[0], b[0], strict=True):
        if isinstance(y, torch.Tensor):
            torch.testing.assert_close(x, y)
        else:
            assert (type(x), x) == (type(y), y)
    return fast


def test_results_of_every_structure() -> None:
    def forward(_: Model, x: torch.Tensor) -> object:
        y = x + 1
        ordered = collections.OrderedDict(b=y, a=x)
        return (y, [x * 2, {"b": x - 1, "a": (x, None)}], Pair(y, Named(x, y)), ordered, 3, "s")

    check(Model(forward), (X,))
    check(Model(lambda m, x: Pair(x + 1, [x * 2])), (X,))
    check(Model(lambda m, x: (None, x + 1, None)), (X,))
    check(Model(lambda m, x: ()), (X,))


def test_arguments_of_every_structure() -> None:
    def forward(_: Model, a: Pair, *more: Any, mask: object, scale: float = 1.0) -> object:
        return a.y * scale + more[0]["u"] - more[0]["v"] if mask is None else more[1]

    args = (Pair(X, [X]), {"u": X + 1, "v": X * 2}, [X, (X, None)])
    fast = check(Model(forward), args, {"mask": None, "scale": 2.0})
    again = (args[0], {"v": X * 2, "u": X + 1}, args[2])  # neither order means anything
    torch.testing.assert_close(fast(*again, scale=2.0, mask=None), X * 2 + X + 1 - X * 2)


def test_a_library_s_own_output_class() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")

    def forward(_: Model, x: torch.Tensor) -> object:
        return outputs.BaseModelOutput(last_hidden_state=x + 1, hidden_states=(x, x * 2))

    check(Model(forward), (X,))


def test_results_share_no_memory_but_an_argument_s_own() -> None:
    def forward(m: Model, x: torch.Tensor) -> object:
        y = x + 1
        return x, x.t(), x[1:], x.expand(2, 3, 4), m.linear.weight, y, y, y.clone(), y[1].clone()

    model = Model(forward)
    fast = check(model, (X,))
    same, *views, weight, y, z, clone, row = fast(X)
    assert same is X
    memory = {X.untyped_storage().data_ptr(), model.linear.weight.untyped_storage().data_ptr()}
    assert memory.isdisjoint(v.untyped_storage().data_ptr() for v in (*views, weight, y))
    assert y is z
    assert len({v.untyped_storage().data_ptr() for v in (*views, weight, y, clone, row)}) == 7


def test_one_tensor_given_twice_is_two_arguments() -> None:
    def forward(_: Model, x: torch.Tensor, y: torch.Tensor) -> object:
        return x * 2 + y

    check(Model(forward), (X, X), call=(X, X + 1))
    model = Model(lambda m, w: m.linear(w))
    square = model.linear.weight
    check(model, (square,), call=(torch.randn(4, 4),))


def test_tied_parameters_are_loaded_by_either_name() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids))

    model, ids = Tied(), torch.tensor([[1, 2], [3, 4]])
    fast = check(model, (ids,))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.embed.weight.mul_(2)
        for state in (
            other.state_dict(),
            {"head.weight": other.head.weight},
            {"embed.weight": other.embed.weight},
        ):
            fast.load_parameters(model.state_dict())
            fast.load_parameters(state)
            torch.testing.assert_close(fast(ids), other(ids))
    with pytest.raises(monotile.InputError, match="were one tensor"):
        fast.load_parameters({"embed.weight": torch.zeros(7, 4), "head.weight": torch.ones(7, 4)})


@pytest.mark.parametrize("shape", [(0, 4), (1, 4), (2, 4), (7, 4), (33, 4)])
def test_batches(shape: tuple[int, ...]) -> None:
    def forward(m: Model, x: torch.Tensor) -> object:
        return m.linear(x).relu(), x.softmax(-1), x.sum(), torch.cat([x, torch.ones(2, 4)])

    check(Model(forward), (torch.randn(shape),))


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 3).t(),
        torch.randn(4).expand(3, 4),
        torch.randn(6, 8)[::2, ::2],
        torch.randn(13)[1:].view(3, 4),
    ],
)
def test_layouts(x: torch.Tensor) -> None:
    check(Model(lambda m, x: m.linear(x)), (X,), call=(x,))


def test_scalars_integers_and_booleans() -> None:
    check(Model(lambda m, x, y: x + y), (torch.tensor(2.0), torch.tensor(3)))
    check(Model(lambda m, x: (x // 2, x % 3, x.float(), x.sum())), (torch.arange(12) - 5,))
    check(Model(lambda m, x: (~x, x.sum(), x.any())), (X > 0,))


def test_python_values_are_compiled_in() -> None:
    def forward(_: Model, x: torch.Tensor, i: int, f: float, b: bool, s: str) -> object:
        return x * i + f if b and s == "a" else x

    fast = check(Model(forward), (X, 2, 1.5, True, "a"))
    others = [(3, 1.5, True, "a"), (2, 1.25, True, "a"), (2, 1.5, False, "a"), (2, 1.5, True, "b")]
    for values in (*others, (2.0, 1.5, True, "a"), (2, 1.5, 1, "a"), (2, 1.5, True, None)):
        with pytest.raises(monotile.InputError, match="when the model was compiled"):
            fast(X, *values)


def test_what_does_not_fit_is_refused() -> None:
    fast = check(Model(lambda m, x, y=None: x * 2), (X,))
    with pytest.raises(monotile.InputError, match=r'on meta: move it with \.to\("cpu"\)'):
        fast(X.to("meta"))
    for args, kwargs in (((X, X), {}), (((X,),), {}), ((), {"x": X}), ((X,), {"y": X})):
        with pytest.raises(monotile.InputError):
            fast(*args, **kwargs)
