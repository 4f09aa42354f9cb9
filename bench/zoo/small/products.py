"""Networks of matrix products."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.zoo.small.registry import Function, Made, made, matrix, small


@small
def mlp() -> Made:
    layers = nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    return made(nn.Sequential(*layers, nn.LogSoftmax(-1)), (64, 784))


@small
def mlp_one_row() -> Made:
    """Deep and narrow: the layers roll, and a worker has little to do."""
    layers = [m for _ in range(6) for m in (nn.Linear(256, 256), nn.Tanh())]
    return made(nn.Sequential(*layers), (1, 256))


@small
def products_in_rounds() -> Made:
    """Several tasks a worker: teams, or the next task's operands asked for in time."""
    layers = nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768)
    return made(nn.Sequential(*layers), (6304, 768))


@small
def products_of_odd_rows() -> Made:
    layers = nn.Linear(128, 1000), nn.GELU(), nn.Linear(1000, 33)
    return made(nn.Sequential(*layers), (6301, 128))


@small
def columns() -> Made:
    """x @ w of one row, the weight as it lies."""

    def forward(m: Function, x: Tensor) -> Tensor:
        for w in (m.first, m.second):
            x = torch.tanh(x @ w) + x
        return x

    parts = {"first": matrix(1536, 1536), "second": matrix(1536, 1536)}
    return made(Function(forward, **parts), (1, 1536))


@small
def weight_first() -> Made:
    """w @ x, of more bytes than the last-level cache has."""

    def forward(m: Function, x: Tensor) -> Tensor:
        return torch.relu(m.w @ x)

    return made(Function(forward, w=matrix(4096, 8192)), (8192, 16))


@small
def batched_products() -> Made:
    def forward(m: Function, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x @ y, x.mT @ x, torch.einsum("bik,bjk,k->bij", x, x, m.scale)

    return made(Function(forward, scale=torch.rand(36)), (5, 20, 36), (5, 36, 44))


@small
def logits() -> Made:
    """Rows of odd length: GPT-2's vocabulary."""

    def forward(m: Function, x: Tensor) -> tuple[Tensor, ...]:
        scores = m.head(m.norm(x))
        return scores, scores.argmax(-1), F.log_softmax(scores.float(), -1)[..., 100]

    parts = {"norm": nn.LayerNorm(256), "head": nn.Linear(256, 50257, bias=False)}
    return made(Function(forward, **parts), (1, 16, 256))


@small
def gated() -> Made:
    """RMS norms and gated feed-forward layers."""

    def forward(m: Function, x: Tensor) -> Tensor:
        for block in m.blocks:
            y = block["norm"](x)
            x = x + block["down"](F.silu(block["gate"](y)) * block["up"](y))
        return x

    def block() -> nn.ModuleDict:
        up, gate = nn.Linear(512, 1376, bias=False), nn.Linear(512, 1376, bias=False)
        down = nn.Linear(1376, 512, bias=False)
        return nn.ModuleDict({"norm": nn.RMSNorm(512), "up": up, "gate": gate, "down": down})

    blocks = nn.ModuleList(block() for _ in range(3))
    return made(Function(forward, blocks=blocks), (40, 512))


@small
def mixer() -> Made:
    """Products along positions and along channels in turns."""

    def forward(m: Function, x: Tensor) -> Tensor:
        x = m.stem(x).flatten(2).mT
        for block in m.blocks:
            x = x + block["tokens"](block["first"](x).mT).mT
            x = x + block["channels"](block["second"](x))
        return m.head(x.mean(1))

    def block() -> nn.ModuleDict:
        tokens = nn.Sequential(nn.Linear(196, 64), nn.GELU(), nn.Linear(64, 196))
        channels = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))
        norms = {"first": nn.LayerNorm(128), "second": nn.LayerNorm(128)}
        return nn.ModuleDict({"tokens": tokens, "channels": channels, **norms})

    def make() -> nn.Module:
        blocks = nn.ModuleList(block() for _ in range(2))
        return Function(forward, stem=nn.Conv2d(3, 128, 16, 16), blocks=blocks, head=nn.Linear(128, 10))  # fmt: skip

    return made(make(), (2, 3, 224, 224))


@small
def packed_weights() -> Made:
    """int8 weights with a scale a row, and four bits a weight, two in a byte."""

    def forward(m: Function, x: Tensor) -> Tensor:
        x = torch.relu(x @ (m.bytes.to(x.dtype) * m.scale[:, None]).mT)
        low, high = (m.nibbles & 15), (m.nibbles >> 4)
        w = torch.stack([low, high], -1).flatten(1).to(x.dtype) - 8
        return x @ (w * m.scale[:, None]).mT

    def make() -> nn.Module:
        held = torch.randint(-127, 128, (256, 256), dtype=torch.int8)
        nibbles = torch.randint(0, 256, (256, 128), dtype=torch.uint8)
        return Function(forward, ("bytes", "nibbles"), bytes=held, nibbles=nibbles, scale=torch.rand(256) / 512)  # fmt: skip

    return made(make(), (8, 256))
