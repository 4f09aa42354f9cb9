"""Networks that once came out wrong, as the shrinker left them."""

import pytest

from tests.codegen.emulate import COMPILER
from tests.fuzz.check import check
from tests.fuzz.graph import Graph, Leaf
from tests.fuzz.runs import Rejected, run

RANDOM = "torch.randn({}, generator=g(0)).to(t.{})"


def graph(leaves: dict[str, str], *lines: str) -> Graph:
    """The last value is the output."""
    made = tuple(Leaf(name, expression) for name, expression in leaves.items())
    return Graph(made, lines, (lines[-1].split(" = ")[0],))


FOUND = {
    "a part of a product": graph(
        {"x0": RANDOM.format((11, 3, 3, 17), "f32"), "p0": RANDOM.format((3, 17), "f32")},
        "v0 = F.linear(x0, p0)",
        "v1 = v0[0::2, 0:2]",
    ),
    "an index into nothing": graph(
        {"x0": RANDOM.format((1, 0, 11), "f16"), "x1": "torch.tensor([-1, 0, 0])"},
        "v0 = x0[x1]",
    ),
    "no elements": graph({"x0": RANDOM.format((3, 16, 0, 16), "f32")}, "v0 = x0 * x0"),
    "nothing of something": graph(
        {"x0": RANDOM.format((16, 1, 7, 11), "f32")}, "v0 = x0[10::2, 1:2, -4, :]"
    ),
    "truths filled with infinity": graph(
        {"x0": "torch.arange(8) > 3", "x1": "torch.arange(8) > 5"},
        'v0 = x0.masked_fill(x1, -float("inf"))',
    ),
    "places between float64 elements": graph(
        {"x0": RANDOM.format((1, 13, 17, 4), "f64")},
        'v0 = F.interpolate(x0, scale_factor=1.5, mode="bilinear")',
    ),
    # GCC 12 made one masked load of loads under several masks.
    "a short row with zeros around": graph(
        {
            "x0": RANDOM.format((3, 5), "f32"),
            "p0": RANDOM.format((5, 5), "f32"),
            "p1": RANDOM.format((1, 1, 3, 2), "f32"),
        },
        "v0 = F.linear(x0, p0)",
        "v1 = F.conv2d(v0[None][None], p1, None, 1, 1, 2, 1)",
    ),
    "arguments that exchange rows": graph(
        {
            "x0": RANDOM.format((5, 3), "f32"),
            "x1": RANDOM.format((5, 3), "f32"),
            "x2": "torch.tensor([1, 3])",
        },
        "v0 = x0.clone()",
        "x0[x2] = x1[x2]",
        "x1[x2] = v0[x2]",
        "v1 = x0 * 2",
    ),
    # PyTorch's tracer has strides for v1 that it does not have when it is run.
    "an update seen through a view of a normalised transpose": graph(
        {
            "x0": RANDOM.format((4, 3, 5), "f32"),
            "p0": RANDOM.format((3,), "f32"),
            "p1": "torch.ones(3)",
        },
        "v0 = x0.transpose(0, 2)",
        "v1 = F.batch_norm(v0, p0, p1)",
        "v2 = v1.reshape((-1,))",
        "v1[0:2] *= 2",
        "v3 = v2 + 1",
    ),
    # GCC took (float)(int)x for trunc(x).
    "integers have no minus zero": graph(
        {"x0": "torch.tensor([-1.0])", "x1": "-torch.rand((17, 1), generator=g(0))"},
        "v0 = x1.to(t.i32).reshape((-1,))",
        "v1 = x0 / v0",
    ),
}

# Of the CUDA target alone.
ON_GPU = {
    # Its values would be what a stage of attention keeps in registers.
    "shares times themselves are no attention": graph(
        {"x0": RANDOM.format((40, 72), "f16"), "p0": RANDOM.format((13, 72), "f16")},
        "v0 = F.linear(x0, p0).softmax(-1)",
        "v1 = v0 @ v0.transpose(-1, -2)",
    ),
    # Its windows overlap, and which terms are padding differs between the outputs of a thread.
    "pools over two columns": graph(
        {"x0": RANDOM.format((8, 31, 2), "bf16"), "x1": RANDOM.format((8, 31, 2), "bf16")},
        "v0 = torch.addcdiv(x0, x0, x1.abs() + 0.5).unsqueeze(3)",
        "v1 = torch.logsumexp(v0, (-1, -4, -3, -2))",
        "v2 = torch.cat((v0, v0), -1)",
        "v3 = F.avg_pool2d(v2, 3, 1, 1, ceil_mode=True, count_include_pad=False) + v1",
    ),
    # What lies behind an index tensor is no index.
    "attention to what is looked up": graph(
        {"p0": "torch.arange(13) * 7 % 5", "p1": RANDOM.format((5, 8), "f32")},
        "v0 = F.embedding(p0, p1)",
        "v1 = F.scaled_dot_product_attention(v0, v0, v0)",
    ),
    "attention of odd rows to themselves": graph(
        {
            "x0": RANDOM.format((1, 1, 17, 17), "f32"),
            "x1": "torch.rand((17, 17), generator=g(0)) > 0.5",
            "p0": "torch.randn((1, 1, 3, 3), generator=g(0)) * 0.333",
        },
        "v0 = F.conv2d(x0, p0, None, 1, 1, 1, 1)",
        "v1 = v0 * torch.sigmoid(v0.mean((2, 3), keepdim=True))",
        "v2 = F.scaled_dot_product_attention(v1, v1, v1, attn_mask=x1)",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    verdict = check(FOUND[name], "cpu")
    assert verdict.kind == "equal", verdict.text


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("name", ON_GPU)
def test_found_on_a_gpu(name: str) -> None:
    verdict = check(ON_GPU[name], "emulator")
    assert verdict.kind == "equal", verdict.text


def test_the_sign_of_nan_is_no_answer() -> None:
    x = {"x0": RANDOM.format((8,), "f32")}
    for line in ("torch.copysign(x0, v0)", "torch.signbit(v0)"):
        with pytest.raises(Rejected):
            run(graph(x, "v0 = x0 ** 2.5", f"v1 = {line}"))
