"""Functions and methods as models."""

import functools

import pytest
import torch
from torch import nn

import monotile

T = torch.Tensor
X = torch.randn(3, 8)


class Coder(nn.Module):
    """Has methods of its own, as autoencoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(8, 4), nn.Linear(4, 8)

    def encode(self, x: T, scale: float = 1.0) -> T:
        return self.down(x) * scale

    def decode(self, x: T) -> T:
        return self.up(x)

    def forward(self, x: T) -> T:
        return self.decode(self.encode(x))


MODEL = Coder().eval()


def calls_a_global(x: T) -> T:
    return MODEL(x).relu()


def test_a_method() -> None:
    compiled = monotile.compile(MODEL.encode, (X,))
    torch.testing.assert_close(compiled(X), MODEL.encode(X))
    with torch.no_grad():
        MODEL.down.weight.mul_(2)
    torch.testing.assert_close(compiled(X), MODEL.encode(X))  # its parameters are the module's


def test_functions_around_models() -> None:
    def closed(x: T, y: T) -> tuple[T, T]:
        return MODEL(x), MODEL.encode(y)

    for function, args in (
        (calls_a_global, (X,)),
        (closed, (X, X + 1)),
        (lambda x: x.softmax(-1), (X,)),
        (functools.partial(MODEL.encode, scale=3.0), (X,)),
        (functools.partial(torch.add, alpha=2), (X, X)),
    ):
        compiled = monotile.compile(function, args)
        torch.testing.assert_close(compiled(*args), function(*args))
        assert not [n for n, p in MODEL.named_parameters() if not p.is_leaf]


class Pipeline:
    """Holds modules, and is none."""

    def __init__(self) -> None:
        self.coder, self.heads = Coder().eval(), [nn.Linear(8, 8), nn.Dropout(0.5).eval()]

    def run(self, x: T) -> T:
        return self.heads[1](self.heads[0](self.coder(x)))

    def __call__(self, x: T) -> T:
        return self.run(x).relu()


def test_objects_that_hold_models() -> None:
    pipeline = Pipeline()

    def outer(x: T) -> T:
        return pipeline(x) + calls_a_global(x)

    for function in (pipeline, pipeline.run, outer):
        compiled = monotile.compile(function, (X,))
        with torch.no_grad():
            pipeline.coder.up.weight.mul_(2)  # the kernel reads it
            pipeline.heads[0].bias.add_(1)
        torch.testing.assert_close(compiled(X), function(X))
    names = {"coder.down.weight", "coder.up.bias", "heads.0.weight"}
    assert names <= {*monotile.compile(pipeline.run, (X,)).artifact.parameters}
    pipeline.heads[1].train()
    with pytest.raises(monotile.CaptureError, match="training mode"):
        monotile.compile(pipeline.run, (X,))


def test_a_function_whose_model_is_in_training_mode() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    with pytest.raises(monotile.CaptureError, match="training mode"):
        monotile.compile(lambda x: model(x), (X,))
    model.eval()
    torch.testing.assert_close(monotile.compile(model.forward, (X,))(X), model(X))


def test_one_tensor_is_the_only_argument() -> None:
    torch.testing.assert_close(monotile.compile(MODEL, X)(X), MODEL(X))


@pytest.mark.parametrize(
    ("model", "args", "said"),
    [
        (Coder, (X,), "an instance of Coder, not the class"),
        (3, (X,), "not of type int"),
        (MODEL, (), r"do not fit Coder\(x: .*missing a required argument: 'x'"),
        (MODEL, (X, X), "too many positional arguments"),
        (nn.LazyLinear(4), (X,), "call it once before"),
    ],
)
def test_what_is_no_model(model: object, args: tuple[T, ...], said: str) -> None:
    with pytest.raises(monotile.CaptureError, match=said):
        monotile.compile(model, args)  # pyright: ignore[reportArgumentType]


@pytest.mark.filterwarnings("ignore")
def test_packed_weights_of_pytorch() -> None:
    model = torch.ao.quantization.quantize_dynamic(MODEL, {nn.Linear}, torch.qint8)
    with pytest.raises(monotile.CaptureError, match=r"torch\.ao\.quantization has packed"):
        monotile.compile(model, (X,))


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: T, scale: float = 1.0, **named: T) -> T:
        return self.layer(x) * named["mask"][:, None] * scale + named.get("shift", 0)


@pytest.mark.parametrize("nested", [False, True])
def test_sizes_of_what_comes_by_any_name_may_be_open(nested: bool) -> None:
    model, n = Keywords().eval(), torch.export.Dim("n", min=1, max=16)
    named = {"mask": {0: n}}
    shapes = {"x": {0: n}, **({"named": named} if nested else named)}
    compiled = monotile.compile(model, (X,), {"mask": X[:, 0], "shift": X[0]}, target="cpu", dynamic_shapes=shapes)  # fmt: skip
    for count in (1, 7, 16):
        x = torch.randn(count, 8)
        given = {"shift": x[0], "mask": x[:, 1]}
        torch.testing.assert_close(compiled(x, **given), model(x, **given))
