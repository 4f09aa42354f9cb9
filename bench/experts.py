"""Layers of experts: routing, and products of which each token chooses its matrices, beside PyTorch's forms of them.

    python -m bench.experts [CASE ...] [--rival eager|compile]... [--out FILE]

"ours" is the layer in transformers' own form, "ours_batched" with a gathered matrix for each row, "ours_loop" with a loop over the experts that are
chosen, of few experts. A rival is each of its forms, "grouped_mm",
"batched_mm", and "loop", which asks the host for what each expert has to do and cannot be in a CUDA graph. All others are in one.
An answer is compared with the loop in float32 first.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

import monotile
from bench.harness import (
    Run,
    command,
    graph_timing,
    rival,
    timed,
    timing,
)
from bench.zoo.weights import build
from monotile.compare.results import Entry, Timing
from monotile.runtime.accuracy import error
from monotile.runtime.measure import measure

TOKENS = (1, 16, 128)
SIZES: dict[str, dict[str, int]] = {
    # Mixtral's, with a quarter of each expert's columns: 0.7 GB
    "mixtral": {"hidden_size": 4096, "intermediate_size": 3584, "num_local_experts": 8, "num_experts_per_tok": 2},
    # as of Qwen3-30B-A3B: many small experts, 1.2 GB
    "many": {"hidden_size": 2048, "intermediate_size": 768, "num_local_experts": 128, "num_experts_per_tok": 8},
}  # fmt: skip
FEW = 16  # experts whose loop is traced
FORMS = {"loop": "eager", "grouped_mm": "grouped_mm", "batched_mm": "batched_mm"}


class Layer(nn.Module):
    """The layer, with one result."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        found: Any = self.block(x)
        return found[0] if isinstance(found, tuple) else found


def layer(form: str, dtype: torch.dtype, **sizes: int) -> nn.Module:
    """With random weights, the same for all forms."""
    config: Any = transformers.MixtralConfig(**sizes)
    config._experts_implementation = FORMS[form]
    made = build(lambda: Layer(MixtralSparseMoeBlock(config)), dtype)
    for p in made.parameters():  # the block leaves them as memory was
        nn.init.normal_(p, std=0.02)
    return made


def entries(
    names: tuple[str, ...], rivals: tuple[str, ...], device: torch.device, _rate: float
) -> Iterator[tuple[str, Callable[[], Entry]]]:
    for name in names:
        with device:
            made = {f: layer(f, torch.bfloat16, **SIZES[name]) for f in FORMS}
        for other in made.values():
            other.load_state_dict(made["loop"].state_dict(), assign=True)
            other.eval().requires_grad_(False)
        for n in TOKENS:
            yield (
                f"{name} {n}",
                lambda n=n, name=name, made=made: entry(name, n, made, rivals, device),
            )


@torch.no_grad()
def entry(
    name: str,
    tokens: int,
    made: dict[str, nn.Module],
    rivals: tuple[str, ...],
    device: torch.device,
) -> Entry:
    """All forms at one number of tokens."""
    x = torch.randn(1, tokens, SIZES[name]["hidden_size"], dtype=torch.bfloat16, device=device)
    right = copy.deepcopy(made["loop"]).float()(x.float())
    forms = {f: m for f, m in made.items() if f != "loop"}
    runs: dict[str, Run] = {}
    took: dict[str, float] = {}
    ours = [("grouped_mm", "ours"), ("batched_mm", "ours_batched"), ("loop", "ours_loop")]
    for form, key in ours if SIZES[name]["num_local_experts"] <= FEW else ours[:-1]:
        runs[key], took[key] = timed(lambda form=form: monotile.compile(made[form], (x,)))
    runs |= {f"{r} {f}": rival(r, m) for r in rivals for f, m in forms.items()}
    times: dict[str, Timing] = {}
    errors: dict[str, float] = {}
    absent: dict[str, str] = {}
    for key, run in runs.items():
        try:
            errors[key] = error(run(x).float(), right)
            times[key] = graph_timing(lambda run=run: run(x), device, took.get(key))
        except Exception as reason:  # a form that this release cannot run
            absent[key] = f"{type(reason).__name__}: {str(reason)[:100]}"
    errors["eager loop"] = error(made["loop"](x).float(), right)
    times["eager loop"] = timing(measure(lambda: made["loop"](x), device, 0.3, 10), None)
    return Entry(
        model=f"experts_{name}", arguments={"tokens": tokens, **SIZES[name]}, dtype="bfloat16",
        ours=times.pop("ours"), rivals=times, errors=errors, absent=absent,
    )  # fmt: skip


NOTES = "all but 'eager loop' in CUDA graphs"
main = command(SIZES, NOTES, entries)


if __name__ == "__main__":
    main()
