"""Compiles every small model, each in a process of its own, and compares it with PyTorch in float64.

    python -m bench.survey [--target cpu] [--dtype float32] [--jobs N] [--seconds S] [--log FILE] [NAME ...]

The log has a line of JSON for each model; what it has is not run again. A CUDA target that is not present has no errors.
"""

import copy
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import click
import msgspec
import torch
import transformers

import monotile
from bench.survey import small
from monotile.errors import MonotileError, TargetError
from monotile.runtime.accuracy import error, exact
from monotile.runtime.reference import eager, to_device


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """outcome: right, inexact (over 1e-5, and 3 times eager's error), compiled (not run), refused (an error of Monotile's),
    failed (any other), or not built (PyTorch itself makes or runs no such model). seconds: of compilation."""

    name: str
    outcome: str
    said: str = ""
    error: float | None = None
    eager: float | None = None
    seconds: float = 0.0


def measured(name: str, target: str, dtype: torch.dtype) -> Row:
    torch.manual_seed(0)
    try:
        model, given = _made(name)
    except Exception as reason:
        return Row(name=name, outcome="not built", said=_words(reason))
    model = model.to(dtype)
    call = (), {k: v.to(dtype) if v.is_floating_point() else v for k, v in given.items()}
    if target == "cuda":
        moved, call = to_device(model, call, torch.device("cuda"))
        assert isinstance(moved, torch.nn.Module)
        model = moved
    start = time.perf_counter()
    try:
        fast = monotile.compile(
            copy.deepcopy(model),
            (),
            dict(call[1]),
            target=target,
            options=monotile.Options(cache=False),
        )
        seconds = time.perf_counter() - start
        found = fast(**call[1])
    except TargetError:
        return Row(name=name, outcome="compiled", seconds=time.perf_counter() - start)
    except MonotileError as reason:
        return Row(name=name, outcome="refused", said=_words(reason))
    except Exception as reason:
        return Row(
            name=name, outcome="failed", said=_words(reason) + "\n" + traceback.format_exc()[-1500:]
        )
    try:
        right = exact(model, call)
    except RuntimeError:  # an operator of few types, such as _grouped_mm
        right = eager(model, call)
    ours, theirs = error(found, right), error(eager(model, call), right)
    good = ours <= max(1e-5 if dtype == torch.float32 else 1e-3, 3 * theirs)
    return Row(
        name=name, outcome="right" if good else "inexact", error=ours, eager=theirs, seconds=seconds
    )


def _made(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The model and arguments that it runs with."""
    it = small.config(name)
    model = transformers.AutoModel.from_config(it).eval().requires_grad_(False)
    reasons = []
    for given in small.inputs(model, it):
        try:
            model(**given)
        except Exception as reason:
            reasons.append(_words(reason))
        else:
            return model, given
    raise ValueError(reasons[0])


def _words(reason: BaseException) -> str:
    return f"{type(reason).__name__}: {reason}"[:600]


def _process(name: str, target: str, dtype: str, to: Connection) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    to.send(measured(name, target, getattr(torch, dtype)))


_FORKING = threading.Lock()


def in_a_process(name: str, target: str, dtype: str, limit: float) -> Row:
    here, there = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=_process, args=(name, target, dtype, there)
    )
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
@click.option("--jobs", default=2)
@click.option("--seconds", default=1e9, help="Nothing is begun after these.")
@click.option("--limit", default=180.0, help="Seconds for a model.")
@click.option("--log", type=Path, required=True)
def main(
    names: Sequence[str],
    target: str,
    dtype: str,
    jobs: int,
    seconds: float,
    limit: float,
    log: Path,
) -> None:
    every = list(names or transformers.models.auto.modeling_auto.MODEL_MAPPING_NAMES)
    known = msgspec.json.Decoder(Row).decode_lines(log.read_bytes()) if log.exists() else []
    left = [n for n in every if n not in {r.name for r in known}]
    end = time.monotonic() + seconds

    def one(name: str) -> None:
        if time.monotonic() > end:
            return
        row = in_a_process(name, target, dtype, limit)
        with log.open("ab") as out:
            out.write(msgspec.json.encode(row) + b"\n")
        click.echo(
            f"{row.name}: {row.outcome} {row.said.splitlines()[0] if row.said else ''}"[:200]
        )

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, left))


if __name__ == "__main__":
    main()
