"""Compares random networks with eager PyTorch.

    python -m tests.fuzz --count 2000 --seed 0 --jobs 2 [--target cpu|cpu-arranged|emulator|cuda|cuda-arranged] [--only SEED]

Network number k has seed `--seed` + k. A failure is made small and printed as a Python module. The exit status says
whether there was one.
"""

import argparse
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.check import Verdict, located
from tests.fuzz.generate import generate
from tests.fuzz.graph import module
from tests.fuzz.shrink import shrink
from tests.fuzz.targets import TARGETS
from tests.fuzz.workers import Judge, verdicts


def report(seed: int, verdict: Verdict, target: str, *, small: bool) -> str:
    graph = generate(seed)
    if small:
        judge = Judge(target)
        graph = shrink(graph, lambda g: judge.verdict(g).kind == verdict.kind)
        verdict = judge.verdict(graph)
        judge.stop()
    step = f", since {located(graph, target)}" if verdict.kind == "wrong" else ""
    head = f"{'=' * 20} seed {seed}: {verdict.kind} ({len(graph.lines)} lines){step}"
    return f"{head}\n{verdict.text}\n\n{module(graph)}\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--target", choices=list(TARGETS), default="cpu")
    parser.add_argument(
        "--only", type=int, action="append", help="these seeds alone, with what they are"
    )
    parser.add_argument("--keep", action="store_true", help="do not shrink")
    parser.add_argument("--out", type=Path, help="a file for the failures as well")
    chosen = parser.parse_args()
    seeds = chosen.only or range(chosen.seed, chosen.seed + chosen.count)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    began = time.monotonic()
    for seed, verdict in verdicts(iter(seeds), chosen.target, chosen.jobs):
        counts[verdict.kind] += 1
        if verdict.kind in ("refused", "unclear"):
            reasons[f"{verdict.kind}: {verdict.text.strip()}"] += 1
        if verdict.is_failure:
            text = report(seed, verdict, chosen.target, small=not chosen.keep)
            print(text, flush=True)
            if chosen.out:
                with chosen.out.open("a") as f:
                    f.write(text)
        done = sum(counts.values())
        if done % 50 == 0:
            print(
                f"{done} networks in {time.monotonic() - began:.0f} s: {dict(counts)}", flush=True
            )
    for reason, count in reasons.most_common():
        print(f"{count} × {reason}")
    print(f"{chosen.target}, seeds {seeds}: {dict(counts)} in {time.monotonic() - began:.0f} s")
    return int(any(Verdict(kind).is_failure for kind in counts))


if __name__ == "__main__":
    raise SystemExit(main())
