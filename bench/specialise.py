"""Pruned networks: the masked model as it is, beside what `specialise=True` leaves of it.

    python -m bench.specialise [MODEL:PRUNED:ROWSxLENGTH ...] [--rival dense|eager|compile]... [--out FILE]

PRUNED is the share of heads and of features between the two products of a feed-forward layer that is masked, in each layer others. "dense" is our kernel of the same
masked model without the option. All are timed in CUDA graphs. Errors are to PyTorch's result in float64.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, ViTConfig, ViTModel

import monotile
from bench.harness import Run, command, graph_timing, rival, timed
from monotile.compare.results import Entry, Floor
from monotile.runtime.accuracy import error, exact

CASES = tuple(
    f"{model}:{pruned}:{call}"
    for model, call in (("bert", "1x128"), ("bert", "8x128"), ("bert", "1x512"), ("vit", "1x197"), ("vit", "8x197"))
    for pruned in ("0.5", "0.75")
)  # fmt: skip


HEADS = ("attention.output.dense", "attention.o_proj")  # what reads them; each has 64 features
FEATURES = (
    ("intermediate.dense", "output.dense"),
    ("mlp.fc1", "mlp.fc2"),
)  # what makes, what reads


@torch.no_grad()
def prune(model: nn.Module, share: float) -> None:
    """Masks heads, by the columns that read them, and features between, by rows, biases and columns."""
    for name, module in model.named_modules():
        if name.endswith(HEADS):
            columns = module.get_parameter("weight").view(
                -1, module.get_parameter("weight").shape[1] // 64, 64
            )
            columns[:, _some(columns.shape[1], share)] = 0
        for up, down in FEATURES:
            if name.endswith(up):
                reader = model.get_submodule(name.removesuffix(up) + down).get_parameter("weight")
                features = _some(reader.shape[1], share)
                reader[:, features] = 0
                module.get_parameter("weight")[features] = 0
                module.get_parameter("bias")[features] = 0


def _some(count: int, share: float) -> Tensor:
    return torch.randperm(count)[: int(share * count)]


def network(name: str, rows: int, length: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    if name == "bert":
        return BertModel(BertConfig()), (torch.randint(0, 30_000, (rows, length)),)
    return ViTModel(ViTConfig()), (torch.randn(rows, 3, 224, 224),)


def entries(
    names: tuple[str, ...], rivals: tuple[str, ...], device: torch.device, rate: float
) -> Iterator[tuple[str, Callable[[], Entry]]]:
    for name in names:
        yield name, lambda name=name: entry(name, rivals, device, rate)


@torch.no_grad()
def entry(name: str, rivals: tuple[str, ...], device: torch.device, rate: float) -> Entry:
    kind, share, call = name.split(":")
    rows, length = map(int, call.split("x"))
    model, args = network(kind, rows, length)
    prune(model, float(share))
    model = model.eval().to(device, torch.float16)
    args = tuple(x.to(device, torch.float16 if x.is_floating_point() else x.dtype) for x in args)
    runs: dict[str, Run] = {}
    ours, took = timed(lambda: monotile.compile(model, args, specialise=True))
    assert isinstance(ours, monotile.CompiledModule)
    runs["ours"] = ours
    runs["dense"] = monotile.compile(model, args)
    for key in rivals:
        if key != "dense":
            runs[key] = rival(key, model)
            runs[key](*args)
    right = exact(model, (args, {}))
    errors = {key: error(run(*args), right) for key, run in runs.items()}
    times = {key: graph_timing(lambda run=run: run(*args), device) for key, run in runs.items()}
    dense, now = ours.specialised.multiply_adds
    about = {"pruned": float(share), "rows": rows, "length": length, "multiply_adds": round(now / dense, 3), "compile_s": round(took, 1)}  # fmt: skip
    work = ours.work
    floor = Floor(work.moved, sum(work.operations.values()), work.seconds(ours.target) * 1e6)
    del rate
    return Entry(
        model=f"pruned_{kind}", arguments=about, dtype="float16", ours=times.pop("ours"), rivals=times, errors=errors, floor=floor,
    )  # fmt: skip


NOTES = "masked models in CUDA graphs; 'dense' is our kernel without the option"
main = command(CASES, NOTES, entries)


if __name__ == "__main__":
    main()
