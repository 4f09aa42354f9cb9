"""What the C of the CPU is spelled for: innermost loops without branches, and nothing of a column in the loop over rows."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import monotile


def source_of(model: nn.Module, x: torch.Tensor, folder: Path) -> str:
    """The C of `model`, which is also right."""
    options = monotile.Options(cache=False, dump_dir=str(folder))
    f = monotile.compile(model.eval(), (x,), target="cpu", options=options)
    with torch.no_grad():
        found, want = f(x), model.double()(x.double())
    assert (found.double() - want).norm() <= 2e-6 * want.norm()
    return next(folder.glob("*_source.c")).read_text()


def convolution(*after: nn.Module, channels: int = 32) -> nn.Module:
    """One between two that keep its channels last."""
    inside = nn.Conv2d(channels, channels, 3, padding=1)
    return nn.Sequential(
        nn.Conv2d(3, channels, 1), nn.ReLU(), inside, *after, nn.Conv2d(channels, 3, 1)
    )


def test_what_a_column_has_one_of_is_computed_once(tmp_path: Path) -> None:
    norm = nn.BatchNorm2d(32)
    norm.running_var.uniform_(0.5, 2.0)
    text = source_of(convolution(norm, nn.ReLU()), torch.randn(1, 3, 12, 13), tmp_path)
    roots = [line for line in text.splitlines() if "rsqrt" in line]
    assert roots
    assert all(line.strip().startswith("of_column_0[") for line in roots)


class Joined(nn.Module):
    """Normalised channels of two tensors, one beside the other, of which each has its own statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = nn.ModuleList(nn.Conv2d(3, n, 1) for n in (48, 20))
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (48, 20, 68))
        for norm in self.norms:
            norm.running_var.uniform_(0.5, 2.0)
        self.last = nn.Conv2d(68, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sides = [n(f(x).sin()) for n, f in zip(self.norms, self.sides, strict=False)]
        return self.last(self.norms[2](torch.cat(sides, 1)).relu())


def test_a_map_takes_the_roots_of_its_columns_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = source_of(Joined(), torch.randn(1, 3, 12, 13), tmp_path)
    roots = [line for line in text.splitlines() if "rsqrt" in line]
    assert any(line.strip().startswith("of_column_0[") for line in roots)


@pytest.mark.parametrize("slopes", [1, 32])
def test_the_slope_of_a_prelu_is_read_in_any_case(slopes: int, tmp_path: Path) -> None:
    text = source_of(convolution(nn.PReLU(slopes)), torch.randn(1, 3, 12, 13), tmp_path)
    if slopes == 1:
        assert "else" not in text


def test_loops_are_cut_by_what_does_not_change_in_them(tmp_path: Path) -> None:
    """The border of an image is a loop of zeros."""
    text = source_of(convolution(), torch.randn(1, 3, 12, 13), tmp_path)
    assert re.search(r"if \(!v\d+\) \{\n[^}]*= 0\.0f;", text)


def test_long_lines_keep_short_quotients(tmp_path: Path) -> None:
    """A channel's group is a quotient by 4, and a line has all 32 channels."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 1), nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 3, 1),
    )  # fmt: skip
    text = source_of(model, torch.randn(1, 3, 12, 13), tmp_path)
    stage = text.partition("static void stage_conv2d_image(")[2].partition("\n}\n")[0]
    assert "/ 4u" in stage
    assert "d0 < 32" in stage


@pytest.mark.parametrize("keys", [21, 49, 63, 197])
def test_the_last_vector_of_a_row_begins_earlier(keys: int, tmp_path: Path) -> None:
    """Of maxima, and of maps that cost enough; not one by one."""
    torch.manual_seed(0)
    text = source_of(Softmax(), torch.randn(2, 5, keys), tmp_path)
    last = [part for part in text.split("for (idx ") if re.match(rf"\w+ = {keys - 16}; ", part)]
    assert any("max_f32" in part for part in last)
    assert any("exp_f32" in part for part in last) == (keys != 49)


class Softmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (3 * x).softmax(-1)


class Decayed(nn.Module):
    """A state that is replaced by what is made of it."""

    state: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.linspace(-1, 1, 63).expand(8, 63).clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state.copy_(torch.exp(self.state) * 0.5)
        return x + 1


def test_no_element_of_a_state_is_replaced_twice() -> None:
    model, want, x = Decayed().eval(), Decayed().eval(), torch.zeros(3)
    f = monotile.compile(model, (x,), target="cpu", options=monotile.Options(cache=False))
    for _ in range(2):
        f(x)
        want(x)
    torch.testing.assert_close(model.state, want.state)


class Heads(nn.Module):
    """Attention of heads of 8 in rows of 64, over 21 keys that lie far apart."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = x.unflatten(2, (3, 8, 8)).permute(2, 1, 3, 0, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v)


def test_short_dot_products_are_tiles(tmp_path: Path) -> None:
    """To add up the lanes of each would take longer than its terms."""
    assert "outer_" in source_of(Heads(), torch.randn(21, 128, 192), tmp_path)


class Grown(nn.Module):
    """Two layers of a DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, 128, 1), nn.ReLU(), nn.Conv2d(128, 32, 3, padding=1))
            for n in (576, 608)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def test_what_a_reduction_would_gather_is_turned_once(tmp_path: Path) -> None:
    """A filter's weights are 9 elements apart along the channels."""
    text = source_of(Grown(), torch.randn(1, 576, 7, 7), tmp_path)
    assert not re.search(r"weight_\d+\[o\d+ \+ r \* 9\]", text)


class Enlarged(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, scale_factor=8, mode="bilinear")


def test_rows_that_are_gathered_have_no_quotients(tmp_path: Path) -> None:
    text = source_of(Enlarged(), torch.randn(2, 3, 9, 9), tmp_path)
    inside = text.partition("#pragma omp simd\n")[2].partition("}")[0]
    assert "mt_to_int_f32" in inside
    assert "/" not in inside
    assert "%" not in inside


@pytest.mark.parametrize("size", [(7, 7), (9, 14), (5, 21), (6, 40)])
def test_rows_of_a_small_image_are_copied(size: tuple[int, int], tmp_path: Path) -> None:
    """For the columns of a grouped convolution, with zeros round the image."""
    torch.manual_seed(0)
    model = nn.Conv2d(48, 48, 3, padding=(1, 2), groups=2)
    text = source_of(model, torch.randn(1, 48, *size), tmp_path)
    assert "mt_copy_run_f32(" in text


class Shifted(nn.Module):
    """Rows of 31, to which one value is added."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x + torch.tanh(y.mean()), (31,))


def test_rows_may_read_what_was_computed_before() -> None:
    torch.manual_seed(0)
    model, args = Shifted(), (torch.randn(4, 31).half(), torch.randn(4, 31, 1).half())
    f = monotile.compile(model, args, target="cpu", options=monotile.Options(cache=False))
    torch.testing.assert_close(f(*args), model(*args), rtol=2e-3, atol=1e-3)
