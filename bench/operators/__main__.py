"""Compiles every float32 operator of PyTorch's database, all its samples in one kernel, and compares the results.

    python -m bench.operators [--target cpu|cuda|cuda:sm_90a] [--only REGEX] [--jobs N] [--out FILE.jsonl] [--table FILE.md]

Results are appended to `--out` as they come. Operators in that file are not run again; delete a line to repeat one. A target
with an architecture is compiled for but not run.

    python -m bench.operators --results FILE.jsonl [FILE.jsonl ...] --table FILE.md

runs nothing and writes the page from earlier results.
"""

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.operators.check import Result, Settings
from bench.operators.samples import database, family
from bench.operators.table import summary, write
from bench.operators.workers import results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.operators",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--only", default="", help="operators whose whole name matches this")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--batch", type=int, default=64, help="samples per kernel")
    parser.add_argument("--limit", type=int, default=None, help="samples per operator")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds per operator")
    parser.add_argument(
        "--out", type=Path, default=None, help="results, one JSON line per operator"
    )
    parser.add_argument("--table", type=Path, default=None, help="Markdown page to write")
    parser.add_argument(
        "--results", type=Path, nargs="+", default=None, help="use these results and run nothing"
    )
    parser.add_argument(
        "--families", action="store_true", help="include families that are left out of the count"
    )
    chosen = parser.parse_args(arguments)
    if chosen.results:
        found = [r for path in chosen.results for r in read(path).values()]
        print(summary(found))
        if chosen.table:
            write(chosen.table, found, chosen.batch)
        return 0

    names = [n for n in database() if chosen.families or family(n) is None]
    names = [n for n in names if not chosen.only or re.fullmatch(chosen.only, n)]
    settings = Settings(chosen.target, chosen.batch, chosen.limit)
    known = read(chosen.out)
    left = [n for n in names if (n, chosen.target) not in known]
    start = time.monotonic()
    for k, r in enumerate(results(left, settings, jobs=chosen.jobs, limit=chosen.timeout)):
        known[r.name, r.target] = r
        if chosen.out:
            with chosen.out.open("a") as file:
                file.write(msgspec.json.encode(r).decode() + "\n")
        passed = time.monotonic() - start
        print(
            f"{passed:6.0f} s {k + 1:4d}/{len(left)} {r.verdict:8s} {r.name} {r.counts}", flush=True
        )
        for verdict, why in r.reasons.items():
            print(f"              {verdict}: {why}")
    ours = [known[n, chosen.target] for n in names if (n, chosen.target) in known]
    print(summary(ours))
    if chosen.table:
        write(chosen.table, list(known.values()), chosen.batch)
    return any(r.verdict in ("WRONG", "CRASHED") for r in ours)


def read(path: Path | None) -> dict[tuple[str, str], Result]:
    """The results in a file by operator and target; the last line of each counts."""
    lines = path.read_text().splitlines() if path and path.exists() else []
    found = [msgspec.json.decode(line, type=Result) for line in lines]
    return {(r.name, r.target): r for r in found}


if __name__ == "__main__":
    raise SystemExit(main())
