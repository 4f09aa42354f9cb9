"""Kernels for a range of sizes, at sizes of it, beside kernels compiled for one size alone, and beside PyTorch compiled for the range.

    python -m bench.sizes [CASE ...] [--rival eager|compile]... [--out FILE]

Every call is in a CUDA graph of its size. "static" is Monotile for that size alone. An answer is compared with float32 first.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from torch.export import Dim

import monotile
from bench.harness import Run, command, graph_timing, rival, timed
from bench.zoo.vision import resnet50
from bench.zoo.weights import build, tokens_of
from monotile.compare.results import Entry, Timing
from monotile.runtime.accuracy import error

HALF = torch.float16
TOKENS = (17, 64, 100, 128, 200, 384, 512)
IMAGES = (1, 2, 4, 8, 16, 32)


class Case(NamedTuple):
    """make: the model. given: its argument of a size. dim: which of its dimensions that is. sizes: up to the range's end."""

    make: Callable[[], nn.Module]
    given: Callable[[int], Tensor]
    dim: int
    sizes: tuple[int, ...]


class Only(nn.Module):
    """One result of a model of transformers."""

    def __init__(self, model: nn.Module, result: str, **given: Any) -> None:
        super().__init__()
        self.model, self.result, self.given = model, result, given

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self.model(x, **self.given), self.result)


def bert() -> nn.Module:
    c = transformers.BertConfig()
    return Only(build(lambda: transformers.BertModel(c, False), HALF), "last_hidden_state")


def gpt2() -> nn.Module:
    c = transformers.GPT2Config()
    return Only(build(lambda: transformers.GPT2LMHeadModel(c), HALF), "logits", use_cache=False)


def encoder() -> nn.Module:
    """The layers of ViT-B."""

    def layer() -> nn.Module:
        return nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True, activation="gelu")  # fmt: skip

    return build(lambda: nn.Sequential(*(layer() for _ in range(12))), HALF)


def rows(n: int) -> Tensor:
    return torch.randn(1, n, 768, dtype=HALF)


CASES = {
    "bert": Case(bert, lambda n: tokens_of(30522, n), 1, TOKENS),
    "gpt2": Case(gpt2, lambda n: tokens_of(50257, n), 1, TOKENS),
    "encoder": Case(encoder, rows, 1, TOKENS),
    "encoder_batch": Case(encoder, lambda n: torch.randn(n, 64, 768, dtype=HALF), 0, IMAGES),
    "resnet50": Case(lambda: Only(resnet50(HALF)[0], "logits"), lambda n: torch.randn(n, 3, 224, 224, dtype=HALF), 0, IMAGES),
}  # fmt: skip


class Runner:
    """One case: what is compiled once for all sizes."""

    def __init__(self, name: str, rivals: tuple[str, ...], device: torch.device) -> None:
        self.name, self.case, self.device = name, CASES[name], device
        self.names = rivals
        self.model = self.case.make().eval().requires_grad_(False).to(device)

    @functools.cached_property
    def sized(self) -> tuple[monotile.CompiledModule, float]:
        """The kernels, and the seconds that they took to compile."""
        size = Dim("size", min=1, max=self.case.sizes[-1])
        shapes = ({self.case.dim: size},)
        x = self.case.given(self.case.sizes[1]).to(self.device)
        return timed(lambda: monotile.compile(self.model, (x,), dynamic_shapes=shapes))

    @functools.cached_property
    def rivals(self) -> dict[str, Run]:
        return {n: self._rival(n) for n in self.names}

    def _rival(self, name: str) -> Run:
        run = rival(name, self.model, dynamic=True)
        if name != "eager":  # a size of 1 would be compiled in
            x = self.case.given(self.case.sizes[1]).to(self.device)
            torch._dynamo.mark_dynamic(x, self.case.dim)
            run(x)
        return run

    @torch.no_grad()
    def entry(self, n: int) -> Entry:
        """All at one size."""
        x = self.case.given(n).to(self.device)
        sized, took = self.sized
        static, alone = timed(lambda: monotile.compile(self.model, (x,)))
        runs: dict[str, Run] = {"ours": sized, "static": static, **self.rivals}
        wide = copy.deepcopy(self.model).float()
        right = wide(x.float() if x.is_floating_point() else x)
        errors = {name: error(run(x).float(), right) for name, run in runs.items()}
        del wide, right
        took_of = {"ours": took, "static": alone}
        times: dict[str, Timing] = {
            name: graph_timing(lambda run=run: run(x), self.device, took_of.get(name))
            for name, run in runs.items()
        }
        return Entry(
            model=self.name, arguments={"size": n, "most": self.case.sizes[-1]}, dtype="float16",
            ours=times.pop("ours"), rivals=times, errors=errors,
        )  # fmt: skip


def entries(
    names: tuple[str, ...], rivals: tuple[str, ...], device: torch.device, _rate: float
) -> Iterator[tuple[str, Callable[[], Entry]]]:
    for name in names:
        runner = Runner(name, rivals, device)
        for n in runner.case.sizes:
            yield f"{name} {n}", lambda n=n, runner=runner: runner.entry(n)


NOTES = "'ours' for the whole range of sizes, 'static' Monotile for the one size, rivals with dynamic=True; all in CUDA graphs"
main = command(CASES, NOTES, entries)


if __name__ == "__main__":
    main()
