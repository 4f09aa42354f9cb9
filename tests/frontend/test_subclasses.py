"""Parameters that are tensor subclasses: the kernel reads the tensors that they hold."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import monotile
from monotile.errors import CaptureError, UnsupportedOperatorError

library = torch.library.Library("monotile_tests", "FRAGMENT")
library.define("unknown(Tensor x, Tensor codes) -> Tensor")
library.impl("unknown", lambda x, codes: x + codes.float().sum(), "CPU")
library.impl("unknown", lambda x, codes: torch.empty_like(x), "Meta")
unknown = torch.ops.monotile_tests.unknown


class Scaled(torch.Tensor):
    """codes * scale."""

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], *_: object) -> Any:
        return cls(inner["codes"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        if func is unknown.default:
            return func(args[0], args[1].codes)
        plain = pytree.tree_map_only(cls, lambda x: x.codes.float() * x.scale, args)
        return func(*plain, **(kwargs or {}))


def weight(scale: Tensor | None = None) -> Scaled:
    scale = torch.rand(32, 1) if scale is None else scale
    return Scaled(torch.randint(-8, 8, (32, 64), dtype=torch.int8), scale)


class Layers(nn.Module):
    """unknown: with an operator that has no lowering."""

    def __init__(self, *, unknown: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight(), requires_grad=False)
        self.register_buffer("other", weight(Scaled(torch.ones(32, 1), torch.rand(1))))
        self.unknown = unknown

    def forward(self, x: Tensor) -> Tensor:
        if self.unknown:
            x = unknown(x, self.weight)
        return F.linear(x, self.weight) + F.linear(x, self.other)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("exported", [False, True])
def test_the_kernel_reads_what_they_hold(exported: bool) -> None:
    model, x = Layers().eval(), torch.randn(3, 64)
    before = model.weight, dict(model.named_buffers())
    given = torch.export.export(model, (x,)) if exported else model
    fast = monotile.compile(given, (x,), target="cpu")
    close(fast(x), model(x))
    names = {"weight.codes", "weight.scale", "other.codes", "other.scale.codes"}
    assert set(fast.plan.weights) == names | {"other.scale.scale"}
    assert model.weight is before[0]
    assert dict(model.named_buffers()) == before[1]
    model.weight.codes.add_(1)  # in place, in the subclass
    close(fast(x), model(x))
    another = Layers().eval()
    fast.load_parameters(another.state_dict())
    close(fast(x), another(x))


def test_tied() -> None:
    model, x = Layers().eval(), torch.randn(3, 64)
    model.other = model.weight.detach()
    fast = monotile.compile(model, (x,), target="cpu")
    close(fast(x), model(x))
    assert len(fast.plan.weights) == 2


def test_torch_compile() -> None:
    model, x = Layers().eval(), torch.randn(3, 64)
    torch._dynamo.reset()
    with torch.no_grad():
        fast = torch.compile(model, backend="monotile")
        close(fast(x), model(x))
        model.weight.codes.add_(1)
        close(fast(x), model(x))
        assert monotile.explain(model, (x,), target="cpu").kernels == 1


def test_an_operator_without_a_lowering_names_the_parameter() -> None:
    model, x = Layers(unknown=True).eval(), torch.randn(3, 64)
    with pytest.raises(UnsupportedOperatorError, match=r"unknown.*parameter weight, of class Scaled"):  # fmt: skip
        monotile.compile(model, (x,), target="cpu")


def test_as_an_argument() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return F.linear(x, w)

    with pytest.raises(CaptureError, match="argument w is a Scaled"):
        monotile.compile(Model(), (torch.randn(3, 64), weight()), target="cpu")
