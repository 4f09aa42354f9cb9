"""Times models beside PyTorch on this machine's GPU and writes a log entry to bench/results/.

    python -m bench.models [--quick] [--commit ID] [--out FILE] [name[:dtype[:key=value,...]] ...]

Each time stands beside its error against float64, measured in the same run on fresh inputs. Rivals: eager
PyTorch, and `torch.compile` in its default mode unless `--quick`; both alone and captured in a CUDA graph. The names are those of
bench.zoo and the examples, these where none is given.
"""

import argparse
import datetime
import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import monotile
from bench.accuracy import error, exact
from bench.zoo import Spec
from monotile.runtime.measure import graphed, measure
from monotile.runtime.reference import fresh, to_device

ALL = [
    "bert_base:float16", "bert_base:bfloat16", "bert_base:float32", "bert_base:float16:tokens=384",
    "lstm:float32", "lstm:float16", "lstm:bfloat16", "lstm_unrolled:float32",
    "mmoe:float16", "mmoe:bfloat16", "mmoe:float32",
]  # fmt: skip
DEVICE = torch.device("cuda")


def timing(call: Callable[[], Any], budget: float, **more: float | int | None) -> dict[str, Any]:
    times = measure(call, DEVICE, budget)
    try:
        graph = measure(graphed(call), DEVICE, budget).median * 1e6
    except RuntimeError as problem:  # not every model can be captured
        print(f"    no graph: {str(problem).splitlines()[0]}")
        graph = None
    empty = {"compile": None, "again": None, "kernels": None}
    return {"call": times.median * 1e6, "graph": graph, "samples": times.samples, **empty, **more}


def seconds(make: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    made = make()
    torch.cuda.synchronize()
    return made, time.perf_counter() - start


def entry(spec: Spec, *, quick: bool, budget: float) -> dict[str, Any]:
    model, call = to_device(*spec.make(), DEVICE)
    assert isinstance(model, torch.nn.Module)
    args, kwargs = inputs = fresh(call, seed=1)
    right = exact(model, inputs)

    with tempfile.TemporaryDirectory() as folder:
        options = monotile.Options(cache_dir=folder)
        ours, cold = seconds(lambda: monotile.compile(model, *call, options=options))
        _, again = seconds(lambda: monotile.compile(model, *call, options=options))
    made = {"compile": cold * 1e6, "again": again * 1e6, "kernels": ours.kernels}
    found = {"ours": error(ours(*args, **kwargs), right)}
    mine = timing(lambda: ours(*args, **kwargs), budget, **made)
    rivals: dict[str, Any] = {}
    found["eager"] = error(model(*args, **kwargs), right)
    rivals["eager"] = timing(lambda: model(*args, **kwargs), budget)
    if not quick:
        torch._dynamo.reset()
        fast = torch.compile(model)
        result, spent = seconds(lambda: fast(*args, **kwargs))
        found["compile"] = error(result, right)
        rivals["compile"] = timing(lambda: fast(*args, **kwargs), budget, compile=spent * 1e6)
    line = {k: f"{v['call']:.0f}/{v['graph'] or 0:.0f}" for k, v in rivals.items()}
    print(
        f"{spec!s:32s} ours {mine['call']:.1f} (graph {mine['graph'] or 0:.1f}) us  {line}  {found}"
    )
    return {
        "model": spec.name, "arguments": spec.arguments, "dtype": spec.dtype, "ours": mine, "rivals": rivals, "errors": found,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=ALL)
    parser.add_argument("--quick", action="store_true", help="no torch.compile")
    parser.add_argument("--commit", default=None, help="of Monotile, where git cannot tell")
    parser.add_argument("--budget", type=float, default=0.5, help="seconds for each timing")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--notes", default="")
    chosen = parser.parse_args()
    with torch.no_grad():
        entries = [
            entry(m, quick=chosen.quick, budget=chosen.budget)
            for m in map(Spec.parse, chosen.models)
        ]
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    log = {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(),
        "versions": {
            "monotile": monotile.__version__, "torch": torch.__version__, "cuda": torch.version.cuda or "",
            "driver": driver, "python": platform.python_version(),
        },
        "commit": chosen.commit or _commit(),
        "notes": chosen.notes,
        "entries": entries,
    }  # fmt: skip
    if chosen.out:
        chosen.out.write_text(json.dumps(log, indent=1) + "\n")


def _commit() -> str:
    git = ["git", "describe", "--always", "--dirty=+"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
