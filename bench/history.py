"""Writes the tables of measured times in README.md, bench/results/README.md and bench/results/wide/README.md from the logs in bench/results.

    python -m bench.history

README.md has one table for each GPU, between `<!-- measured: LOG ... -->` and `<!-- /measured -->`: a row for each network
of the named logs, where the last log that has a network counts. bench/results/README.md has a row for each
network of every log, between `<!-- history -->` and `<!-- /history -->`. Of the wide table README.md has the summary and the picture, between
`<!-- wide -->` and `<!-- /wide -->`, and bench/results/wide/README.md has all, between `<!-- wide table -->` and `<!-- /wide table -->`: for each
GPU of its newest log, and of the newest with timm's networks.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from bench.wide import report
from monotile.compare.results import Entry, Log, Timing, read

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PAGES = (ROOT / "README.md", RESULTS / "README.md", RESULTS / "wide" / "README.md")
NAMES = {
    "bert_base": "BERT-base", "vit_base": "ViT-B/16", "gpt2": "GPT-2", "lstm": "LSTM, 10 layers × 100 steps × 256",
    "mmoe": "mixture of 8 experts, 2 tasks", "resnet18": "ResNet-18", "resnet50": "ResNet-50",
    "resnext101": "ResNeXt-101 64x4d", "efficientnet_b0": "EfficientNet-b0", "mobilenet_v2": "MobileNetV2",
    "convnext_tiny": "ConvNeXt-tiny", "segformer_b0": "SegFormer-b0", "lstm_unrolled": "LSTM unrolled, 10 layers × 20 steps",
}  # fmt: skip
TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
HEAD = ("network", "Monotile", "parameters arranged", "fastest rival", "speed-up", "library's module: torch.compile", "eager")  # fmt: skip


def newest(logs: Iterable[Log]) -> str:
    """One Markdown table of all networks of these logs that have a time and a rival; a later log replaces a row."""
    rows: dict[str, list[str]] = {}
    entries = [e for log in logs for e in log.entries]
    for entry in sorted(entries, key=_place):
        own, arranged, fastest = _graph(entry.ours), _graph(entry.arranged), _fastest(entry)
        if own is None or fastest is None:
            continue
        name, rival = fastest
        speed = f"{rival / own:.2f} ×" + (f" ({rival / arranged:.2f} ×)" if arranged else "")
        rows[title(entry)] = [
            _time(own), _time(arranged), f"{_time(rival)} ({name})", speed,
            _time(_graph(entry.rivals.get("compile"))), _time(_graph(entry.rivals.get("eager"))),
        ]  # fmt: skip
    return _table(HEAD, [[name, *cells] for name, cells in rows.items()])


def history(logs: Iterable[tuple[str, Log]]) -> str:
    """A row for each network of each log, by device and network, oldest first."""
    tables: dict[str, list[list[str]]] = {}
    for name, log in logs:
        for e in log.entries:
            own, fastest = _graph(e.ours), _fastest(e)
            if own is None and fastest is None:
                continue
            rival = f"{_time(fastest[1])} ({fastest[0]})" if fastest else ""
            speed = f"{fastest[1] / own:.2f} ×" if fastest and own else ""
            ours = _time(own) or e.absent.get("monotile", "no time")
            row = [title(e), log.date, log.commit, ours, _time(_graph(e.arranged)), rival, speed, f"[log]({name})"]  # fmt: skip
            tables.setdefault(log.device, []).append(row)
    head = ("network", "date", "commit", "Monotile", "parameters arranged", "fastest rival", "speed-up", "")  # fmt: skip
    return "\n\n".join(
        f"### {device}\n\n{_table(head, sorted(rows, key=lambda row: row[0]))}"
        for device, rows in sorted(tables.items())
    )


def title(entry: Entry) -> str:
    shown = {k: v for k, v in entry.arguments.items() if k != "use_cache" and (k, v) != ("batch", 1)}  # fmt: skip
    if entry.model == "bert_base":
        shown = {"tokens": 128, **shown}
    words = {"tokens": "{} tokens", "batch": "batch {}"}
    sizes = [words.get(k, k + " {}").format(v) for k, v in shown.items()]
    return ", ".join([NAMES.get(entry.model, entry.model), *sizes, TYPES.get(entry.dtype, entry.dtype)])  # fmt: skip


def _place(entry: Entry) -> tuple[int, int]:
    """Batch 1 first, in the order of NAMES."""
    names = list(NAMES)
    return entry.arguments.get("batch", 1), names.index(entry.model) if entry.model in names else len(names)  # fmt: skip


def rewritten(page: str, results: Path = RESULTS) -> str:
    """The text of a page with its tables from the logs of today."""

    def measured(found: re.Match[str]) -> str:
        logs = [read(results / f"{name}.json") for name in found[1].split()]
        return f"<!-- measured: {found[1]} -->\n\n{newest(logs)}\n\n<!-- /measured -->"

    def all_logs(_: re.Match[str]) -> str:
        logs = sorted(((p.name, read(p)) for p in results.glob("*.json")), key=lambda log: (log[1].date, log[0].removesuffix(".json")))  # fmt: skip
        return f"<!-- history -->\n\n{history(logs)}\n\n<!-- /history -->"

    def headlines(_: re.Match[str]) -> str:
        parts = [report.headline(log, f"bench/results/wide/{name}") for name, log in newest_wide(results / "wide")]  # fmt: skip
        return "\n\n".join(["<!-- wide -->", *parts, "<!-- /wide -->"])

    def wide(_: re.Match[str]) -> str:
        parts = [
            f"## {', '.join(filter(None, (log.device, report.library(log))))}\n\n![]({name}.png)\n\n{report.page(log, results / 'wide')}"
            for name, log in newest_wide(results / "wide")
        ]
        return "\n\n".join(["<!-- wide table -->", *parts, "<!-- /wide table -->"])

    page = re.sub(r"<!-- measured: (.*?) -->.*?<!-- /measured -->", measured, page, flags=re.S)
    page = re.sub(r"<!-- wide -->.*?<!-- /wide -->", headlines, page, flags=re.S)
    page = re.sub(r"<!-- wide table -->.*?<!-- /wide table -->", wide, page, flags=re.S)
    return re.sub(r"<!-- history -->.*?<!-- /history -->", all_logs, page, flags=re.S)


def newest_wide(folder: Path) -> list[tuple[str, Log]]:
    """The newest log of each GPU, and of a library's networks alone, with its name."""
    logs = [(p.stem, read(p)) for p in sorted(folder.glob("20*.json"))]
    return list({(log.device, report.library(log)): (name, log) for name, log in logs}.values())


def _table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    used = [k for k in range(len(head)) if any(row[k] for row in rows)]
    lines = [[head[k] for k in used], ["---"] * len(used), *([row[k] for k in used] for row in rows)]  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _graph(t: Timing | None) -> float | None:
    """In a CUDA graph where that was measured."""
    return None if t is None else t.graph or t.call


def _fastest(entry: Entry) -> tuple[str, float] | None:
    times = {name: t.graph or t.call for name, t in entry.rivals.items()}
    name = min(times, key=lambda n: times[n], default=None)
    if name is None:
        return None
    return name.replace("compile", "torch.compile").replace("xla", "XLA"), times[name]


def _time(microseconds: float | None) -> str:
    if microseconds is None:
        return ""
    return f"{microseconds:.1f}" if microseconds < 20 else f"{microseconds:.0f}"


def main() -> None:
    for page in PAGES:
        page.write_text(rewritten(page.read_text()))


if __name__ == "__main__":
    main()
