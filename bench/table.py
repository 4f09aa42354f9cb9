"""Every network of the table beside its rivals, in one run: `make bench`.

python -m bench.table [--only NAME] [--all] [--batches] [--convolutions] [--jobs N] [--limit SECONDS] [--commit ID] [--out FOLDER]
"""

import datetime
from pathlib import Path

import click
import torch
from rich.console import Console

from monotile.compare import run
from monotile.compare.jobs import Network
from monotile.compare.results import read
from monotile.compare.run import EVERY, USUAL, Settings, jobs_of
from monotile.config import Options

HALF = "float16"
BERT = {"plain": "bench.plain.bert:plain", "xla": "bench.xla.bert:network"}
MMOE = {"plain": "bench.plain.mmoe:plain", "xla": "bench.xla.mmoe:network"}
VIT, GPT2 = {"plain": "bench.plain.vit:plain"}, {"plain": "bench.plain.gpt2:plain"}
LSTM = {"xla": "bench.xla.lstm:network"}
VISION = "bench.zoo.vision:"

TABLE = [
    Network("bert_base", "bert_base", HALF, {"tokens": 128}, **BERT),
    Network("mmoe", "mmoe", HALF, **MMOE),
    Network("bert_base", "bert_base", HALF, {"tokens": 384}, **BERT),
    Network("lstm", "lstm", "float32", **LSTM),
    Network("vit_base", "bench.zoo.vision:vit_base", HALF, **VIT),
    Network("gpt2", "bench.zoo.decoders:gpt2", HALF, {"use_cache": False}, **GPT2),
]
TUNED = TABLE[:2]  # for which max-autotune, of minutes, is worth its time


def batches() -> list[Network]:
    """The transformers and the convolutional networks at larger batches."""
    out: list[Network] = []
    for batch in (8, 32):
        size = {"batch": batch}
        out += [
            Network("bert_base", "bert_base", HALF, {"tokens": 128, **size}, **BERT),
            Network("mmoe", "mmoe", HALF, size, **MMOE),
            Network("lstm", "lstm", "float32", size, **LSTM),
            Network("vit_base", VISION + "vit_base", HALF, size, **VIT),
            Network("gpt2", "bench.zoo.decoders:gpt2", HALF, {"use_cache": False, **size}, **GPT2),
        ]
    return [*out, *convolutions(8), *convolutions(32)]


def convolutions(batch: int) -> list[Network]:
    """Networks of images, which rivals get with their channels last as well."""
    names = ("resnet18", "resnet50", "resnext101", "efficientnet_b0", "mobilenet_v2", "convnext_tiny", "segformer_b0")  # fmt: skip
    return [Network(n, VISION + n, HALF, {"batch": batch}, images=True) for n in names]


@click.command()
@click.option("--only", multiple=True, help="A name of the table; may be given several times.")
@click.option("--all", "every", is_flag=True, help="max-autotune for all, not for two networks.")
@click.option("--batches", "larger", is_flag=True, help="Batches of 8 and 32 instead.")
@click.option("--convolutions", "images", is_flag=True, help="Convolutional networks instead.")
@click.option("--profile/--no-profile", default=True, show_default=True)
@click.option(
    "--arrange-parameters", is_flag=True, help="Monotile with the parameters arranged, too."
)
@click.option("--seconds", default=0.5, show_default=True, help="To time each for.")
@click.option("--jobs", default=1, show_default=True, help="Processes that compile at a time.")
@click.option("--limit", default=900.0, show_default=True, help="Seconds for a process.")
@click.option("--commit", help="Of Monotile, where git cannot tell.")
@click.option("--notes", default="")
@click.option("--target", default="auto", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench/results"), show_default=True)  # fmt: skip
@click.option("--show", type=click.Path(path_type=Path), help="Only print and draw this log.")
def main(
    only: tuple[str, ...],
    every: bool,
    larger: bool,
    images: bool,
    profile: bool,
    arrange_parameters: bool,
    seconds: float,
    jobs: int,
    limit: float,
    commit: str | None,
    notes: str,
    target: str,
    out: Path,
    show: Path | None,
) -> None:
    """Time the networks of the table beside their rivals."""
    if show is not None:
        run.show(log := read(show), Console())
        run.draw(log, show.parent, show.stem, Console())
        return
    every_one = batches() if larger else convolutions(1) if images else TABLE
    networks = [n for n in every_one if not only or n.name in only]
    settings = Settings(
        target=target, at_once=jobs, limit=limit, seconds=seconds, profile=profile and not larger and not images, folder=out,
        options=Options(arrange_parameters=arrange_parameters), commit=commit, notes=notes,
    )  # fmt: skip
    work = [
        job
        for n in networks
        for job in jobs_of(n, EVERY if every or n in TUNED else USUAL, settings)
    ]
    work.sort(key=lambda job: job.way != "max-autotune")  # what takes longest begins first
    gpu = (
        "cpu" if not torch.cuda.is_available() else torch.cuda.get_device_name().split()[1].lower()
    )
    what = "batches" if larger else "convolutions" if images else "table"
    run.compare(work, settings, Console(), f"{datetime.date.today().isoformat()}-{gpu}-{what}")


if __name__ == "__main__":
    main()
