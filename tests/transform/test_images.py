"""What windows are read from is an image that has each place once, and means the same."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import monotile
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.ir.expr import loads
from monotile.ir.program import Compute, Program, statements
from monotile.kernels.matmul.method import Matmul
from monotile.pipeline import transform
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda.target import cuda_target
from monotile.targets.target import Target
from monotile.transform.layout.channels_last import assign_layouts
from monotile.transform.layout.images import make_images
from tests.schedule.programs import stages
from tests.transform.networks import assert_same

TARGET = cpu_target(workers=2)
CUDA = cuda_target("sm_90a")
OPTIONS = Options(cache=False)


def laid_out(model: nn.Module, *shape: int, target: Target = TARGET) -> Program:
    captured = capture(export(model.eval(), (torch.randn(shape),)))
    program, _ = transform(captured.program, captured.constants, OPTIONS, lambda *_: None)
    return assign_layouts(program, target)


def computed(program: Program) -> dict[str, Compute]:
    return {s.out.name: s for s in statements(program.body) if isinstance(s, Compute)}


def images(program: Program) -> dict[str, tuple[int, ...]]:
    return {n: s.out.shape for n, s in computed(program).items() if "image" in n}


class Two(nn.Module):
    """A convolution, or what has one, between two that read and make the caller's order."""

    def __init__(self, second: nn.Module, channels: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, channels, 1), second
        with torch.no_grad():
            made = second.eval()(torch.zeros(1, channels, 16, 16))
        self.last = nn.Conv2d(made.shape[1], 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(F.gelu(self.first(x))).relu())


class Siblings(nn.Module):
    """Two convolutions that read the same places, and go their own ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 4, 1), nn.Conv2d(6, 5, 1)
        self.a, self.b = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        return self.last(self.a(x).tanh() + self.b(self.a(x)[:, :4].sin()).relu() + self.b(x).exp())


@pytest.mark.parametrize(
    ("second", "shape"),
    [
        (nn.Conv2d(4, 6, 3, padding=1), (1, 9, 8, 4)),
        (nn.Conv2d(4, 6, 3, padding=2, dilation=2), (11, 10, 4)),
        (nn.Conv2d(4, 6, 3, padding=1, stride=2), (9, 8, 4)),
        (nn.Conv2d(4, 6, (1, 5), padding=(0, 2)), (10, 4)),
    ],
)
def test_padding_is_part_of_the_image(second: nn.Module, shape: tuple[int, ...]) -> None:
    before = laid_out(Two(second), 1, 2, 7, 6)
    after = make_images(before, TARGET)
    (found,) = images(after).values()
    assert [n for n in found if n > 1][-len(shape) :] == [n for n in shape if n > 1] or found[
        -1
    ] == 4
    product = [s for s in computed(after).values() if len(s.reduce) > 1][-1]
    assert {"image" in x.tensor.name for x in loads(product.body)} == {True, False}
    assert "where" not in str(product.body)
    assert_same(before, after)


@pytest.mark.parametrize(
    "second",
    [
        nn.Conv2d(4, 6, 1),  # no windows
        nn.Conv2d(4, 6, 3),  # in place as it is
        nn.Conv2d(4, 6, 2, stride=3, padding=1),  # places between the windows
        nn.Conv2d(4, 4, 3, padding=1, groups=4),  # no product
        nn.Conv2d(4, 2, 3, padding=1),  # few columns
    ],
)
def test_what_needs_no_image_has_none(second: nn.Module) -> None:
    before = laid_out(Two(second), 1, 2, 7, 6)
    assert make_images(before, TARGET) is before


@pytest.mark.parametrize(
    "second",
    [
        nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU(), nn.Conv2d(4, 6, 3, padding=1)),
        nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(4, 6, 3, padding=1)),
        nn.Sequential(nn.ReflectionPad2d(1), nn.Tanh(), nn.Conv2d(4, 6, 3, padding=1)),
    ],
)
def test_an_image_is_what_is_computed_on_the_way(second: nn.Module) -> None:
    before = laid_out(Two(second), 1, 2, 7, 6)
    after = make_images(before, TARGET)
    assert len(images(after)) == 1
    assert_same(before, after)


def test_siblings_share_an_image_of_the_same_places() -> None:
    before = laid_out(Siblings(), 1, 2, 7, 6)
    after = make_images(before, TARGET)
    assert len(images(after)) == 2
    assert_same(before, after)


def test_places_do_not_share_a_set_of_the_cache() -> None:
    """A place of 256 channels is 1,024 bytes: one vector more lies between neighbours."""
    before = laid_out(Two(nn.Conv2d(256, 8, 3, padding=1), 256), 1, 2, 4, 4)
    after = make_images(before, TARGET)
    (found,) = images(after).values()
    assert found[-1] == 256 + TARGET.vector_bytes // 4
    assert_same(before, after)
    unpadded = laid_out(Two(nn.Conv2d(256, 8, 3), 256), 1, 2, 6, 6)
    assert len(images(make_images(unpadded, TARGET))) == 1


class Squares(nn.Module):
    """Squares of pixels as channels, each of all colours (as in TResNet)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        return x.view(n, c, h // 4, 4, w // 4, 4).permute(0, 3, 5, 1, 2, 4).reshape(n, 16 * c, h // 4, w // 4)  # fmt: skip


@pytest.mark.parametrize("first", [Squares(), nn.Sequential(nn.Conv2d(3, 192, 1), nn.PixelShuffle(2))])  # fmt: skip
def test_squares_of_pixels_are_channels_side_by_side(first: nn.Module) -> None:
    """Where copies are wide: what a window reads of one place is one piece."""
    before = laid_out(nn.Sequential(first, nn.Conv2d(48, 8, 3, padding=1)), 1, 3, 8, 12, target=CUDA)  # fmt: skip
    after = make_images(before, CUDA)
    (found,) = images(after).values()
    assert found[-1] == 48
    assert_same(before, after)


def test_what_is_read_in_pieces_has_no_image() -> None:
    before = laid_out(Two(nn.Conv2d(16, 24, 3, padding=1), 16), 1, 2, 7, 6, target=CUDA)
    assert make_images(before, CUDA) is before


def compiled(model: nn.Module, *args: torch.Tensor) -> monotile.CompiledModule:
    return monotile.compile(model.eval(), args, target="cpu", options=OPTIONS)


def test_convolutions_read_their_images_in_place() -> None:
    f = compiled(Two(nn.Conv2d(16, 24, 3, padding=1), 16), torch.randn(1, 2, 20, 20))
    methods = [s.method for stage in stages(f.artifact.plan) for s in stage.steps]
    lefts = [m.left for m in methods if isinstance(m, Matmul)]
    assert lefts
    assert {x.copy for x in lefts} == {"direct"}


@pytest.mark.parametrize(
    "second",
    [
        nn.Conv2d(16, 24, 3, padding=1),
        nn.Conv2d(16, 24, 3, padding=1, stride=2, dilation=2),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.Conv2d(16, 32, 3, padding=1, groups=4),
        nn.ConvTranspose2d(16, 24, 4, stride=2, padding=1),
        nn.Sequential(nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24), nn.PReLU(24), nn.MaxPool2d(3, 2, 1)),
        nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 24, 3, padding=1), nn.PReLU()),
        nn.Sequential(nn.PixelShuffle(2), nn.Conv2d(4, 24, 3, padding=1, padding_mode="reflect"), nn.PixelUnshuffle(2), nn.Conv2d(96, 8, 3)),
        nn.Sequential(nn.ZeroPad2d(2), nn.Conv2d(16, 24, 5), nn.Upsample(scale_factor=2), nn.Conv2d(24, 4, 3, padding=1)),
    ],
)  # fmt: skip
def test_networks_are_right(second: nn.Module) -> None:
    model, x = Two(second, 16).eval(), torch.randn(3, 2, 19, 21)
    with torch.no_grad():
        want = model.double()(x.double())
        found = compiled(model.float(), x)(x)
    assert (found.double() - want).norm() <= 2e-6 * want.norm()
