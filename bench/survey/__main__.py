"""Compiles every small model, each in a process of its own, and compares it with PyTorch in float64.

    python -m bench.survey [--target cpu] [--dtype float32] [--head AutoModel] [--write | --sizes | --traced] [--jobs N] [--seconds S] [--log FILE] [NAME ...]

head: an Auto class of transformers, whose model types are tried. write: they write tokens by `monotile.generator`, and the ids are
compared with those of transformers' generate. sizes: one kernel for every number of sequences and tokens, asked with
several. traced: through torch.compile, with several sizes too. The log has a line of JSON for each model; what it has is not run again. A CUDA target that is not present has no errors.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import click
import msgspec
import torch
import transformers

from bench.survey.answers import answered
from bench.survey.ranged import ranged
from bench.survey.rows import Row
from bench.survey.traced import traced
from bench.survey.written import written

Case = Callable[[], Row]

_FORKING = threading.Lock()


def _process(case: Case, to: Connection) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    to.send(case())


def in_a_process(name: str, case: Case, limit: float) -> Row:
    here, there = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_process, args=(case, there))
    with _FORKING:  # one at a time: a library's locks refuse more
        child.start()
    there.close()
    try:
        if here.poll(limit):
            return here.recv()
        return Row(name=name, outcome="failed", said=f"took over {limit:.0f} seconds")
    except EOFError:
        child.join()
        return Row(name=name, outcome="failed", said=f"the process ended with {child.exitcode}")
    finally:
        child.kill()
        child.join()


@click.command(help=__doc__)
@click.argument("names", nargs=-1)
@click.option("--target", default="cpu")
@click.option("--dtype", default="float32")
@click.option("--head", default="AutoModel")
@click.option("--write", "of", flag_value="written")
@click.option("--sizes", "of", flag_value="ranged")
@click.option("--traced", "of", flag_value="traced")
@click.option("--jobs", default=2)
@click.option("--seconds", default=1e9, help="Nothing is begun after these.")
@click.option("--limit", default=180.0, help="Seconds for a model.")
@click.option("--log", type=Path, required=True)
def main(
    names: Sequence[str],
    log: Path,
    jobs: int,
    seconds: float,
    limit: float,
    of: str | None,
    **how: str,
) -> None:
    every = list(names or getattr(transformers, how["head"])._model_mapping._model_mapping)
    known = msgspec.json.Decoder(Row).decode_lines(log.read_bytes()) if log.exists() else []
    left = [n for n in every if n not in {r.name for r in known}]
    end = time.monotonic() + seconds
    survey = {"written": written, "ranged": ranged, "traced": traced}[of] if of else answered

    def one(name: str) -> None:
        if time.monotonic() > end:
            return
        dtype = getattr(torch, how["dtype"])
        row = in_a_process(name, lambda: survey(name, how["head"], how["target"], dtype), limit)
        with log.open("ab") as out:
            out.write(msgspec.json.encode(row) + b"\n")
        click.echo(
            f"{row.name}: {row.outcome} {row.said.splitlines()[0] if row.said else ''}"[:200]
        )

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, left))


if __name__ == "__main__":
    main()
