"""Networks of convolutions and poolings."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.zoo.small.registry import Function, Made, made, small


@small
def conv_net() -> Made:
    """Strided, depthwise, grouped, dilated; poolings of three kinds."""
    layers = (
        nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU6(),
        nn.Conv2d(32, 32, 3, 1, 1, groups=32), nn.Hardswish(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(32, 64, 3, 1, 1, groups=4), nn.SiLU(), nn.AvgPool2d(2),
        nn.Conv2d(64, 64, 3, 1, 2, dilation=2), nn.LeakyReLU(0.1),
        nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(576, 10),
    )  # fmt: skip
    return made(nn.Sequential(*layers), (2, 3, 96, 96))


@small
def convolutions_of_groups() -> Made:
    """Few channels a group: several groups are runs of one product's columns."""
    layers = nn.Conv2d(3, 128, 3, 2, 1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1, groups=32)
    rest = nn.BatchNorm2d(128), nn.ReLU(), nn.Conv2d(128, 32, 1)
    return made(nn.Sequential(*layers, *rest), (2, 3, 64, 64))


@small
def residual() -> Made:
    """Blocks with batch norms, which roll."""

    def forward(m: Function, x: Tensor) -> Tensor:
        x = m.stem(x)
        for block in m.blocks:
            x = torch.relu(x + block(x))
        return m.head(x.mean((2, 3)))

    def block() -> nn.Module:
        first = nn.Conv2d(64, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()
        return nn.Sequential(*first, nn.Conv2d(64, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64))

    def make() -> nn.Module:
        blocks = nn.Sequential(*(block() for _ in range(3)))
        return Function(forward, stem=nn.Conv2d(3, 64, 7, 2, 3), blocks=blocks, head=nn.Linear(64, 10))  # fmt: skip

    return made(make(), (1, 3, 64, 64))


@small
def squeeze_excite() -> Made:
    def forward(m: Function, x: Tensor) -> Tensor:
        x = F.silu(m.depthwise(x))
        mean = x.mean((2, 3), keepdim=True)
        return m.project(x * torch.sigmoid(m.up(F.silu(m.down(mean)))))

    def make() -> nn.Module:
        depthwise = nn.Conv2d(96, 96, 5, 2, 2, groups=96)
        down, up, project = nn.Conv2d(96, 8, 1), nn.Conv2d(8, 96, 1), nn.Conv2d(96, 24, 1)
        return Function(forward, depthwise=depthwise, down=down, up=up, project=project)

    return made(make(), (2, 96, 56, 56))


@small
def conv_1d() -> Made:
    layers = (
        nn.Conv1d(1, 64, 10, 5), nn.GroupNorm(64, 64), nn.GELU(), nn.Conv1d(64, 64, 3, 2), nn.GELU(), nn.MaxPool1d(2),
        nn.Conv1d(64, 64, 5, padding="same", dilation=2, groups=16), nn.PReLU(), nn.AvgPool1d(4),
    )  # fmt: skip
    return made(nn.Sequential(*layers), (1, 1, 4000))


@small
def conv_3d() -> Made:
    layers = nn.Conv3d(2, 16, 3, padding=1), nn.ELU(), nn.MaxPool3d(2), nn.Conv3d(16, 32, 3), nn.BatchNorm3d(32)  # fmt: skip
    return made(nn.Sequential(*layers, nn.AdaptiveMaxPool3d(1)), (1, 2, 8, 16, 16))


@small
def unet() -> Made:
    """Transposed convolutions, enlarging, and concatenations over channels."""

    def forward(m: Function, x: Tensor) -> Tensor:
        a = F.relu(m.first(x))
        b = F.relu(m.second(F.max_pool2d(a, 2)))
        c = F.relu(m.third(F.max_pool2d(b, 2)))
        b = F.relu(m.fourth(torch.cat([m.larger(c), b], 1)))
        up = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return m.last(torch.cat([up, a], 1))

    def make() -> nn.Module:
        third, larger = nn.Conv2d(32, 64, 3, 1, 1), nn.ConvTranspose2d(64, 32, 2, 2)
        first, second = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 1, 1)
        fourth, last = nn.Conv2d(64, 32, 3, 1, 1), nn.Conv2d(48, 2, 1)
        return Function(forward, first=first, second=second, third=third, larger=larger, fourth=fourth, last=last)  # fmt: skip

    return made(make(), (1, 3, 64, 64))


@small
def diffusion_block() -> Made:
    """Group norms, a time's embedding added to all places, pixels shuffled."""

    def forward(m: Function, x: Tensor, t: Tensor) -> Tensor:
        h = m.first(F.silu(m.before(x))) + m.time(F.silu(t))[:, :, None, None]
        h = m.second(F.silu(m.after(h))) + m.short(x)
        return F.pixel_shuffle(h, 2)

    def make() -> nn.Module:
        convolutions = {"first": nn.Conv2d(32, 64, 3, 1, 1), "second": nn.Conv2d(64, 64, 3, 1, 1)}
        norms = {"before": nn.GroupNorm(8, 32), "after": nn.GroupNorm(8, 64)}
        return Function(forward, **convolutions, **norms, time=nn.Linear(128, 64), short=nn.Conv2d(32, 64, 1))  # fmt: skip

    return made(make(), (2, 32, 32, 32), (2, 128))


@small
def channels_last_image() -> Made:
    """An image that lies with its channels last, of bytes, and a weight that does so as well."""

    def forward(m: Function, x: Tensor) -> Tensor:
        x = (x.to(m.scale.dtype) / 255 - m.scale) / 0.25
        return F.relu(m.second(F.relu(m.first(x))))

    def make() -> nn.Module:
        first, second = nn.Conv2d(3, 32, 4, 4), nn.Conv2d(32, 64, 3, 1, 1)
        return Function(forward, first=first, second=second, scale=torch.rand(3, 1, 1))

    model = make().to(memory_format=torch.channels_last)
    image = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    return model, (image.to(memory_format=torch.channels_last),)
