"""The results of sweeps as a page of the documentation."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench.operators.check import VERDICTS, Result

_HEAD = """# PyTorch's operators

Every float32 entry of PyTorch's operator database (`torch.testing._internal.common_methods_invocations.op_db`), with all
of its samples, compiled and compared with PyTorch. Up to {batch} samples of an operator form one module and one kernel.
This page is written by

```sh
python -m bench.operators --out bench/results/operators.jsonl --table docs/operators.md
```

which runs the operators that the results file does not contain yet. `--target cuda --out FILE` runs on a GPU.
`--results FILE FILE --table PAGE` makes one page from several runs.

- **Correct**: the distance to PyTorch in float64 is at most four times that of PyTorch in float32, plus 1e-5 (relative and
  absolute). Types, shapes, structure, integers, booleans, NaN and infinity must be equal.
- **Refused**: an `UnsupportedOperatorError` for at least one sample; the other samples are correct.
- **Excluded**: operators without one correct answer, and those of which `torch.export` makes no static graph. Such samples of
  correct operators are left out too.
- Linear algebra, FFT, sparse and complex tensors and the `special` functions are not part of this sweep. FFT and complex numbers
  inside a model are compared with PyTorch in `tests/frontend/`: `test_fourier.py`, `test_complex.py`.
"""


def summary(found: Sequence[Result]) -> str:
    """One line: how many operators have which verdict, and the share that is correct."""
    counts = {v: sum(r.verdict == v for r in found) for v in VERDICTS}
    counted = len(found) - counts["excluded"]
    share = 100 * (counts["correct"] + counts["compiled"]) / max(counted, 1)
    each = ", ".join(f"{n} {v}" for v, n in counts.items() if n and v != "excluded")
    return (
        f"{counted} operators counted: {each}; {share:.1f} % correct. {counts['excluded']} excluded"
    )


def write(path: Path, found: Sequence[Result], batch: int) -> None:
    """Writes the page of the results `found`, of one or several targets."""
    path.write_text("\n".join(_page(found, batch)) + "\n")


def _page(found: Sequence[Result], batch: int) -> Iterator[str]:
    yield _HEAD.format(batch=batch)
    yield from _rows(
        (
            "target",
            "PyTorch",
            "correct",
            "refused",
            "wrong",
            "crashed",
            "share",
            "excluded",
            "samples correct",
        ),
        (_figures([r for r in found if (r.target, r.torch) == run]) for run in _runs(found)),
    )
    for verdict, title in (("WRONG", "Wrong"), ("CRASHED", "Crashed"), ("refused", "Refused")):
        listed = sorted((r for r in found if r.verdict == verdict), key=lambda r: r.name)
        if listed:
            yield f"\n## {title}\n"
            yield from _rows(
                ("operator", "target", "samples", "reason"), (_failure(r, verdict) for r in listed)
            )
    last = {
        r.name: r for r in reversed(found)
    }.values()  # the rest of the page is about the first run
    yield "\n## Excluded\n"
    groups: dict[str, list[str]] = defaultdict(list)
    for r in last:
        if r.verdict == "excluded":
            groups[_group(r.reasons.get("excluded", "no samples"))].append(f"`{r.name}`")
    yield from _rows(
        ("reason", "operators"), ((why, ", ".join(sorted(n))) for why, n in sorted(groups.items()))
    )
    yield "\n## Correct\n"
    names = sorted(r.name for r in last if r.verdict == "correct")
    yield ", ".join(f"`{n}`" for n in names)


def _runs(found: Iterable[Result]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((r.target, r.torch) for r in found))


def _figures(found: Sequence[Result]) -> tuple[str, ...]:
    def number(verdict: str) -> int:
        return sum(r.verdict == verdict for r in found)

    good = number("correct")
    counted = max(len(found) - number("excluded"), 1)
    samples = sum(r.counts.get("correct", 0) for r in found)
    untried = sum(r.untried for r in found)
    verdicts = (str(number(v)) for v in ("correct", "refused", "WRONG", "CRASHED"))
    share = f"{100 * good / counted:.1f} %"
    return (
        found[0].target,
        found[0].torch,
        *verdicts,
        share,
        str(number("excluded")),
        f"{samples}, {untried} not tried" if untried else str(samples),
    )


def _failure(r: Result, verdict: str) -> tuple[str, ...]:
    share = f"{r.counts.get(verdict, 0)} of {sum(r.counts.values())}"
    return f"`{r.name}`", r.target, share, r.reasons.get(verdict, "").replace("|", "\\|")


def _group(why: str) -> str:
    """A reason without the details of one operator."""
    data = (
        "depends on data",
        "a number or a shape",
        "DataDependent",
        "data-dependent",
        "Unbacked",
        "Dynamic",
    )
    if any(sign in why for sign in data):
        return "a shape or a number depends on data"
    if why.startswith("random"):
        return "random"
    if "in training mode" in why:
        return "training"
    return why


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
