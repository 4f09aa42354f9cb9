"""Transformers over packed sequences (`torch.nn.attention.varlen`), beside eager PyTorch and `torch.compile`.

    python -m bench.packed [CASE ...] [--rival eager|compile|none]... [--out FILE]

A case is how 4096 tokens are cut in sequences. With `--rival none` only ours is timed: what attention takes of it should grow with the sum of the
squares of the lengths, which is printed as a part of that of one sequence. The lengths are an argument: "ours" is one kernel for all cases of that many sequences. All are in CUDA graphs.
An answer is compared with attention sequence by sequence in float32 first.
"""

import copy
import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn

import monotile
from bench.harness import Run, command, graph_timing, rival, timed
from monotile.compare.results import Entry, Timing
from monotile.runtime.accuracy import error

LAYERS, HEADS, WIDTH, TOKENS = 4, 12, 64, 4096
CASES: dict[str, tuple[int, ...]] = {
    "mixed": (64, 128, 256, 448, 512, 768, 896, 1024),
    "equal": (512,) * 8,
    "steep": (64,) * 7 + (TOKENS - 7 * 64,),
    "one": (TOKENS,) + (0,) * 7,
    "short": (64,) * 64,
}


class Block(nn.Module):
    """exact: attention sequence by sequence, which asks the host for the lengths."""

    exact = False

    def __init__(self) -> None:
        super().__init__()
        size = HEADS * WIDTH
        self.before, self.between = nn.LayerNorm(size), nn.LayerNorm(size)
        self.inward, self.outward = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.wide = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        q, k, v = self.inward(self.before(x)).view(-1, 3, HEADS, WIDTH).unbind(1)
        mixed = self.by_sequence(q, k, v, ends) if self.exact else varlen_attn(q, k, v, ends, ends, TOKENS, TOKENS)  # fmt: skip
        assert isinstance(mixed, Tensor)
        x = x + self.outward(mixed.flatten(1))
        return x + self.wide(self.between(x))

    def by_sequence(self, q: Tensor, k: Tensor, v: Tensor, ends: Tensor) -> Tensor:
        parts = [
            nn.functional.scaled_dot_product_attention(*(t[a:b].transpose(0, 1) for t in (q, k, v)))
            for a, b in itertools.pairwise(ends.tolist())
            if a < b
        ]
        return torch.cat([p.transpose(0, 1) for p in parts])


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, ends)
        return x


def entries(
    names: tuple[str, ...], rivals: tuple[str, ...], device: torch.device, _rate: float
) -> Iterator[tuple[str, Callable[[], Entry]]]:
    torch.manual_seed(0)
    model = Layers().to(device, torch.float16).eval().requires_grad_(False)
    made: dict[int, tuple[Run, float]] = {}
    for name in names:
        squares = sum(n * n for n in CASES[name]) / TOKENS**2
        yield (
            f"{name} ({squares:.3f} of the products)",
            lambda name=name: entry(name, model, made, rivals, device),
        )


@torch.no_grad()
def entry(
    name: str,
    model: nn.Module,
    made: dict[int, tuple[Run, float]],
    rivals: tuple[str, ...],
    device: torch.device,
) -> Entry:
    """One way to cut the tokens. made: our kernels so far, by the number of sequences."""
    lengths = CASES[name]
    ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    x = torch.randn(TOKENS, HEADS * WIDTH, dtype=torch.float16, device=device)
    exact = copy.deepcopy(model).float()
    for block in exact.modules():
        if isinstance(block, Block):
            block.exact = True
    right = exact(x.float(), ends)
    count = len(lengths)
    if count not in made:
        made[count] = timed(lambda: monotile.compile(model, (x, ends)))
    runs: dict[str, Run] = {"ours": made[count][0]}
    runs |= {r: rival(r, model) for r in rivals if r != "none"}
    times: dict[str, Timing] = {}
    errors: dict[str, float] = {}
    absent: dict[str, str] = {}
    for key, run in runs.items():
        try:
            errors[key] = error(run(x, ends).float(), right)
            took = made[count][1] if key == "ours" else None
            times[key] = graph_timing(lambda run=run: run(x, ends), device, took)
        except Exception as reason:  # what this release cannot run
            if key == "ours":
                raise
            absent[key] = f"{type(reason).__name__}: {str(reason)[:100]}"
    return Entry(
        model=f"packed_{name}", arguments={"lengths": " ".join(map(str, lengths)), "layers": LAYERS, "heads": HEADS},
        dtype="float16", ours=times.pop("ours"), rivals=times, errors=errors, absent=absent,
    )  # fmt: skip


NOTES = "all in CUDA graphs"
main = command(CASES, NOTES, entries)


if __name__ == "__main__":
    main()
