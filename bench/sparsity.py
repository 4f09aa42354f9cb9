"""Products of operands that are mostly zero, beside the dense ones.

    python -m bench.sparsity [CASE:PERCENT:SIZE ...] [--rival eager]... [--out FILE]

Square products. "rows": of the left operand times a mask of 32 x 1 that each call brings, which the kernel makes lists of; "blocks": of a weight
times a mask of 32 x 32; "large_blocks": of 64 x 64; "vectors": of 32 x 1, as vector-wise N:M has it. Four calls with operands of their own, which come from memory, in one CUDA graph; times are of all four. "eager" is
torch.matmul of the operands with the zeros in them: the dense product alone. Errors are to the product in float64.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import monotile
from bench.harness import command, graph_timing, timed
from monotile.compare.results import Entry, Floor
from monotile.runtime.accuracy import error

COPIES = 4  # of the operands, together more than twice the last-level cache
CASES = (
    "vectors:75:4096",
    "rows:95:4096",
    "rows:90:4096",
    "blocks:90:4096",
    "large_blocks:90:4096",
    "blocks:95:4096",
)
BLOCKS = {"rows": (32, 1), "vectors": (32, 1), "blocks": (32, 32), "large_blocks": (64, 64)}


class Rows(nn.Module):
    """(x * mask) @ w, where rows of 32 share a mask."""

    def forward(self, x: Tensor, mask: Tensor, w: Tensor) -> Tensor:
        return (x * spread(monotile.sparse(mask), BLOCKS["rows"])) @ w


class Blocks(nn.Module):
    """x @ (w * mask)."""

    def __init__(self, block: tuple[int, int]) -> None:
        super().__init__()
        self.block = block

    def forward(self, w: Tensor, mask: Tensor, x: Tensor) -> Tensor:
        return nn.functional.linear(x, w * spread(monotile.sparse(mask), self.block))


def spread(mask: Tensor, block: tuple[int, int]) -> Tensor:
    for d, n in enumerate(block):
        mask = mask.repeat_interleave(n, d) if n > 1 else mask
    return mask


def entries(
    names: tuple[str, ...], rivals: tuple[str, ...], device: torch.device, rate: float
) -> Iterator[tuple[str, Callable[[], Entry]]]:
    for name in names:
        yield name, lambda name=name: entry(name, rivals, device, rate)


@torch.no_grad()
def entry(name: str, rivals: tuple[str, ...], device: torch.device, rate: float) -> Entry:
    kind, percent, extent = name.split(":")
    n, block = int(extent), BLOCKS[kind]
    model = Rows() if kind == "rows" else Blocks(block)

    def call() -> tuple[Tensor, Tensor, Tensor]:
        masked, other = (torch.randn(n, n, device=device).half() for _ in range(2))
        kept = torch.rand(n // block[0], n // block[1], device=device) >= int(percent) / 100
        return masked, kept, other

    calls = [call() for _ in range(COPIES)]
    ours, took = timed(lambda: monotile.compile(model, calls[0]))
    dense = [(a * spread(m, block), b) for a, m, b in calls]

    def product(a: Tensor, b: Tensor) -> Tensor:
        return a @ b if kind == "rows" else nn.functional.linear(b, a)

    errors = {"ours": error(ours(*calls[0]), [product(*(x.double() for x in dense[0]))])}
    times = {"ours": graph_timing(lambda: [ours(*c) for c in calls], device)}
    if "eager" in rivals:
        errors["eager"] = error(product(*dense[0]), [product(*(x.double() for x in dense[0]))])
        times["eager"] = graph_timing(lambda: [product(*c) for c in dense], device)
    live = 1 - int(percent) / 100
    read = 3 * 2 * n * n
    return Entry(
        model=f"sparse_{kind}", arguments={"percent": int(percent), "size": n, "calls": COPIES, "compile_s": round(took, 1)},
        dtype="float16", ours=times.pop("ours"), rivals=times, errors=errors,
        floor=Floor(COPIES * read, int(COPIES * 2 * n**3 * live), COPIES * read / rate * 1e6),
    )  # fmt: skip


NOTES = "operands of each call from memory; 'eager' is the dense product alone"
main = command(CASES, NOTES, entries)


if __name__ == "__main__":
    main()
