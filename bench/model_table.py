"""Compiles models at full size, checks each against PyTorch in float64, and writes the table in docs/models.md.

    python -m bench.model_table [--target TARGET ...] [--dtype DTYPE ...] [--jobs N] [--out FILE] [--merge FILE ...] [--docs]
                                [name[:dtype[:key=value,...]] ...]

Each model is compiled for each target (cpu and cuda:sm_90a by default) in a process of its own, so that one that fails or
runs out of memory does not affect the others. Each result is appended to the record, bench/zoo/table.jsonl, at once; at the
end it replaces the earlier line of the same model and target. --docs writes the table from the record; without models to
compile it does only that. Errors are measured on the target of this machine; a CUDA target that is not present has none.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

import msgspec
import torch

import monotile
from bench.zoo import TABLE, Spec
from monotile.errors import MonotileError, TargetError
from monotile.plan.nodes import PlanNode, Repeat, Stage
from monotile.plan.walk import nodes_in
from monotile.runtime.accuracy import error, exact
from monotile.runtime.measure import measure as timed
from monotile.runtime.reference import eager, to_device

RECORD = Path(__file__).parent / "zoo" / "table.jsonl"
DOCS = Path(__file__).parents[1] / "docs" / "models.md"
TARGETS = ("cpu", "cuda:sm_90a")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """seconds, cpu_seconds: from call to callable without a cache; wall clock, and processor time of all threads and
    children. source: characters. parameters, memory (peak of the process), workspace: bytes. error, eager: relative to
    float64, in the norm; None if it was not run. call, eager_call: seconds of the fastest call, if requested, on a machine that may
    be busy. device: the GPU that it ran on. failure: the reason if there is no result.
    """

    model: str
    target: str
    device: str = ""
    failure: str | None = None
    kernels: int = 0
    error: float | None = None
    eager: float | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    source: int = 0
    stages: int = 0
    loops: int = 0
    parameters: int = 0
    memory: int = 0
    workspace: int = 0
    call: float | None = None
    eager_call: float | None = None

    @property
    def accurate(self) -> bool:
        """Within 1e-5 in float32, within 1.5 times PyTorch's own error in a narrower dtype."""
        if self.error is None or self.eager is None:
            return True
        wide = Spec.parse(self.model).dtype == "float32"
        return self.error <= (1e-5 if wide else 1.5 * self.eager)


def measure(spec: Spec, target: str, *, times: bool) -> Row:
    model, call = spec.make()
    if target == "cuda":
        torch.backends.cudnn.allow_tf32 = False
        model, call = to_device(model, call, torch.device("cuda"))
    assert isinstance(model, torch.nn.Module)
    where = torch.device("cuda" if target == "cuda" else "cpu")
    device = torch.cuda.get_device_name() if target == "cuda" else ""
    start, before = time.perf_counter(), _cpu_seconds()
    fast = monotile.compile(model, *call, target=target, options=monotile.Options(cache=False))
    seconds, cpu = time.perf_counter() - start, _cpu_seconds() - before
    ours = theirs = call_seconds = eager_seconds = None
    try:
        found = fast(*call[0], **call[1])
    except TargetError:  # compiled ahead
        device = ""
    else:
        right = exact(model, call)
        ours, theirs = error(found, right), error(eager(model, call), right)
        if times:
            call_seconds = timed(lambda: fast(*call[0], **call[1]), where, 0.2).best
            eager_seconds = timed(lambda: eager(model, call), where, 0.2).best
    stages, loops = _counted(fast.plan.body)
    return Row(
        model=str(spec), target=target, device=device, kernels=fast.kernels, error=ours, eager=theirs, seconds=seconds,
        cpu_seconds=cpu, source=len(fast.source), stages=stages, loops=loops,
        parameters=sum(p.nbytes for p in model.parameters()), memory=getrusage(RUSAGE_SELF).ru_maxrss * 1024,
        workspace=fast.plan.launch.workspace_bytes, call=call_seconds, eager_call=eager_seconds,
    )  # fmt: skip


def _cpu_seconds() -> float:
    used = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _counted(nodes: Iterable[PlanNode]) -> tuple[int, int]:
    """Stages and loops in the source, regardless of trip counts."""
    every = tuple(nodes_in(tuple(nodes)))
    return sum(isinstance(n, Stage) for n in every), sum(isinstance(n, Repeat) for n in every)


def in_a_process(spec: Spec, target: str, limit: float, jobs: int, times: bool) -> Row:
    share = str(max(1, (os.cpu_count() or 1) // jobs))  # processors per job
    environment = {**os.environ, "OMP_NUM_THREADS": share} if jobs > 1 else None
    command = [
        sys.executable,
        "-m",
        "bench.model_table",
        "--one",
        target,
        str(spec),
        *["--times"] * times,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, env=environment)  # fmt: skip
        lines = done.stdout.strip().splitlines()
        if done.returncode == 0 and lines:
            return msgspec.json.decode(lines[-1], type=Row)
        said = [line for line in done.stderr.splitlines() if line.strip()]
        failure = said[-1] if said else f"exit status {done.returncode}"
    except subprocess.TimeoutExpired:
        failure = f"took over {limit:.0f} seconds"
    return Row(model=str(spec), target=target, failure=failure)


def line(row: Row) -> str:
    if row.failure is not None:
        return f"{row.model:40s} {row.target:12s} {row.failure[:200]}"
    return (
        f"{row.model:40s} {row.target:12s} {row.kernels} kernel, error {_number(row.error)} (eager {_number(row.eager)})"
        f"{'' if row.accurate else ' TOO LARGE'}, {row.cpu_seconds:.1f} s CPU, {row.seconds:.1f} s, source {row.source / 1000:.0f} kB,"
        f" {row.stages} stages, {row.loops} loops, peak {row.memory / 2**30:.1f} GiB, workspace {row.workspace / 2**20:.0f} MiB,"
        f" call {_number(row.call)} s (eager {_number(row.eager_call)} s)"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


# The record and the page.


def merged(*parts: Sequence[Row]) -> list[Row]:
    """Later rows replace earlier ones; sorted by model in the order of the table."""
    rows = {(r.model, r.target): r for part in parts for r in part}
    order = {str(Spec.parse(text)): k for k, text in enumerate(TABLE)}

    def place(row: Row) -> tuple[str, int, str]:
        model = str(msgspec.structs.replace(Spec.parse(row.model), dtype="float32"))
        return row.target, order.get(model, len(order)), row.model

    return sorted(rows.values(), key=place)


def read(path: Path) -> list[Row]:
    return msgspec.json.Decoder(Row).decode_lines(path.read_bytes()) if path.exists() else []


def table(rows: Sequence[Row]) -> str:
    """One Markdown table per target."""
    out: list[str] = []
    ran = {(r.target, r.device) for r in rows}
    for target, device in sorted(ran):
        if not device and any(t == target and d for t, d in ran):
            continue  # failures, which are listed in that table
        out += [
            f"### {target}{f', {device}' if device else ''}",
            "",
            "| model | kernels | error | eager's error | compilation, CPU s | source, kB | stages | loops |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for r in rows:
            if r.target == target and r.device in (device, ""):
                found = _number(r.error) if r.accurate else f"**{_number(r.error)}**"
                cells = [
                    r.kernels, found, _number(r.eager), f"{r.cpu_seconds:.1f}", f"{r.source / 1000:.0f}", r.stages, r.loops,
                ]  # fmt: skip
                if r.failure is not None:
                    cells = [" ".join(f"none: {r.failure}".split()).replace("|", "/"), *[""] * 6]
                out.append(f"| {' | '.join(map(str, [_words(r.model), *cells]))} |")
        out.append("")
    return "\n".join(out)


def _words(model: str) -> str:
    spec = Spec.parse(model)
    return ", ".join(
        [f"`{spec.name}`", spec.dtype, *(f"{k}={v}" for k, v in spec.arguments.items())]
    )


def write_docs(rows: Sequence[Row], page: Path = DOCS) -> None:
    """Writes the table between the markers of the page."""
    begin, end = "<!-- models -->\n", "<!-- /models -->"
    text = page.read_text()
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    page.write_text(
        re.sub(pattern, lambda _: begin + "\n" + table(rows) + "\n" + end, text, flags=re.S)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("models", nargs="*", help="default: the whole table, unless --merge or --docs is given")  # fmt: skip
    parser.add_argument("--target", action="append", help="may be given several times")
    parser.add_argument("--dtype", action="append", help="for models named without one; may be given several times")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, help="models at once")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one model")
    parser.add_argument("--times", action="store_true", help="time calls, beside PyTorch")
    parser.add_argument("--out", type=Path, default=RECORD, help="the record")
    parser.add_argument("--merge", type=Path, action="append", default=[], help="a record to add")
    parser.add_argument("--docs", action="store_true", help=f"write {DOCS.name}")
    parser.add_argument("--one", metavar="TARGET", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        try:
            row = measure(Spec.parse(chosen.models[0]), chosen.one, times=chosen.times)
        except MonotileError as problem:
            row = Row(model=chosen.models[0], target=chosen.one, failure=_first_line(problem))
        print(msgspec.json.encode(row).decode())
        return
    models = chosen.models or ([] if chosen.merge or chosen.docs else TABLE)
    specs = dict.fromkeys(str(s) for m in models for s in _in_dtypes(m, chosen.dtype))
    work = [(Spec.parse(spec), target) for spec in specs for target in chosen.target or TARGETS]
    made: list[Row] = []
    with ThreadPoolExecutor(chosen.jobs) as pool, chosen.out.open("ab") as record:
        jobs = [
            pool.submit(in_a_process, *job, chosen.limit, chosen.jobs, chosen.times) for job in work
        ]
        for job in as_completed(jobs):
            row = job.result()
            print(line(row), flush=True)
            record.write(msgspec.json.encode(row) + b"\n")
            record.flush()
            made.append(row)
    rows = merged(read(chosen.out), *(read(path) for path in chosen.merge), made)
    chosen.out.write_bytes(msgspec.json.Encoder().encode_lines(rows))
    if chosen.docs:
        write_docs(rows)


def _in_dtypes(model: str, dtypes: Sequence[str] | None) -> list[Spec]:
    spec = Spec.parse(model)
    named = model.partition(":")[2].partition(":")[0]
    return (
        [spec] if named or not dtypes else [msgspec.structs.replace(spec, dtype=d) for d in dtypes]
    )


def _first_line(problem: BaseException) -> str:
    return str(problem).partition("\n")[0]


if __name__ == "__main__":
    main()
