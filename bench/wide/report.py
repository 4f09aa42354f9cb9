"""A log of the wide table as text and as a picture: how much faster each network is than its fastest rival."""

import importlib
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from bench.wide.networks import ASKED, DOMAINS, NETWORKS
from monotile.compare.jobs import Network
from monotile.compare.results import Entry, Log

TYPES = {"float16": "fp16", "float32": "fp32", "bfloat16": "bf16"}
RIVALS = {"eager": "eager PyTorch", "compile": "`torch.compile`", "openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}  # fmt: skip
COLOURS = {1: "#1b4965", 8: "#2a9d8f", 32: "#e9a03b"}
Column = tuple[str, int]  # dtype and batch


def own(e: Entry) -> float | None:
    """Our time: of images, whose fastest rival is given weights that lie as it reads them, the better of ours with and without."""
    arranged = e.arranged.graph or e.arranged.call if e.arranged else None
    return min((t for t in (e.own, arranged) if t is not None), default=None)


def ratio(e: Entry) -> float | None:
    """Of the fastest rival's time to ours; above 1 we are faster."""
    time = own(e)
    return None if time is None or e.best is None else e.best[1] / time


def title(name: str) -> str:
    return NETWORKS[name].title if name in NETWORKS else name


def library(log: Log) -> str:
    """Of all its networks, if that is one whose domain is run only where it is asked for; else nothing."""
    found = {NETWORKS[e.model].domain for e in log.entries if e.model in NETWORKS}
    return found.pop() if len(found) == 1 and found <= {*ASKED} else ""


def column(e: Entry) -> Column:
    return e.dtype, e.arguments["batch"]


def columns(log: Log) -> list[Column]:
    return sorted({column(e) for e in log.entries})


def beside(log: Log) -> str:
    """What the ratios are over, in words."""
    seen = {name.rpartition(" ")[2] for e in log.entries for name in e.rivals}
    names = [title for name, title in RIVALS.items() if name in seen]
    few = len(names) < 3
    words = " and ".join([", ".join(names[:-1]), *names[-1:]] if names[1:] else names)
    return f"the {'faster' if few else 'fastest'} of {words}"


def in_graphs(log: Log) -> bool:
    return any(t.graph is not None for e in log.entries for t in e.rivals.values())


def against_each(log: Log) -> str:
    """A row for each rival, in Markdown: how many times as fast ours is as that one."""
    rows = ["| | networks | geometric mean | slower than it |", "| --- | --- | --- | --- |"]
    for name, words in RIVALS.items():
        times = [(e.own, [min(t.call, t.graph or t.call) for n, t in e.rivals.items() if n.rpartition(" ")[2] == name]) for e in log.entries]  # fmt: skip
        found = [min(theirs) / own for own, theirs in times if own and theirs]
        if found:
            mean = statistics.geometric_mean(found)
            rows.append(f"| {words} | {len(found)} | {mean:.2f} × | {sum(r < 1 for r in found)} |")
    return "\n".join(rows)


def size(of: Column) -> str:
    return f"{TYPES.get(of[0], of[0])}, batch {of[1]}"


def ranked(entries: Iterable[Entry]) -> list[tuple[float, Entry]]:
    """Entries with their ratio, the slowest beside its rival first."""
    found = [(r, e) for e in entries if (r := ratio(e)) is not None]
    return sorted(found, key=lambda item: item[0])


def summary(log: Log) -> str:
    """A row for each dtype and batch, in Markdown."""
    rows = [
        "| | networks | geometric mean | best | worst | slower than a rival | without a time |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for of in columns(log):
        entries = [e for e in log.entries if column(e) == of]
        found = ranked(entries)
        cells = [size(of), str(len(found)), "", "", "", "", str(len(entries) - len(found))]
        if found:
            mean = statistics.geometric_mean(r for r, _ in found)
            worst, best = (f"{r:.2f} × ({title(e.model)})" for r, e in (found[0], found[-1]))
            slower = str(sum(r < 1 for r, _ in found))
            cells[2:6] = [f"{mean:.2f} ×", best, worst, slower]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def table(log: Log) -> str:
    """A row for each network, in Markdown: microseconds of ours, and the ratio at each dtype and batch."""
    shown = columns(log)
    rows = [f"| | {' | '.join(map(size, shown))} |", "| --- |" + " --- |" * len(shown)]
    for domain, names in groupby(by_domain(log), lambda item: item[0]):
        rows.append(f"| **{domain}** |" + " |" * len(shown))
        for _, name in names:
            cells = [cell(e) for of in shown for e in [entry_of(log, name, of)]]
            rows.append(f"| {title(name)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def by_domain(log: Log) -> list[tuple[str, str]]:
    """Domain and name of each network, in the order of the registry."""
    names = dict.fromkeys(e.model for e in log.entries)
    known = [(n.domain, name) for name, n in NETWORKS.items() if name in names]
    others = [("others", name) for name in names if name not in NETWORKS]
    return [*sorted(known, key=lambda item: DOMAINS.index(item[0])), *others]


def entry_of(log: Log, name: str, of: Column) -> Entry | None:
    return next((e for e in log.entries if e.model == name and column(e) == of), None)


def cell(e: Entry | None) -> str:
    if e is None:
        return ""
    found, time = ratio(e), own(e)
    if time is None or found is None:
        return "no time"
    faster = f"{found:.2f} ×" if found >= 1 else f"**{found:.2f} ×**"
    return f"{time:.0f} ({faster})"


def defects(log: Log, reasons: dict[str, str]) -> str:
    """A line of Markdown for each network that is slower than a rival, the worst first, with the reason.

    reasons: by "name", "name:dtype" or "name:dtype:batch"; the longest counts.
    """
    lines: list[str] = []
    for r, e in ranked(log.entries):
        if r < 1:
            keys = [e.model, f"{e.model}:{e.dtype}", f"{e.model}:{e.dtype}:{e.arguments['batch']}"]
            why = next((reasons[k] for k in reversed(keys) if k in reasons), "no reason known yet")
            lines.append(f"- {title(e.model)}, {size(column(e))}, {r:.2f} × ({e.best[0] if e.best else ''}): {why}")  # fmt: skip
    return "\n".join(lines) or "None."


def failures(log: Log) -> str:
    """A line of Markdown for each contender without a time, equal ones together."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for e in log.entries:
        for way, why in e.absent.items():
            words = " ".join(why.split()).replace("|", "/")
            found.setdefault((e.model, way, words), []).append(size(column(e)))
    lines = [f"- {title(n)}, {way} ({'; '.join(where)}): {why}" for (n, way, why), where in found.items()]  # fmt: skip
    return "\n".join(lines) or "None."


def reasons_in(folder: Path, kind: str = "cuda") -> dict[str, str]:
    """What is known of why networks are slower, from reasons.json, on a CPU from reasons-cpu.json."""
    path = folder / ("reasons.json" if kind == "cuda" else f"reasons-{kind}.json")
    return msgspec.json.decode(path.read_bytes(), type=dict[str, str]) if path.exists() else {}


def page(log: Log, folder: Path) -> str:
    """All of the above."""
    parts = (
        summary(log),
        against_each(log),
        f"Microseconds a call, and how many times as fast that is as {beside(log)}.",
        table(log),
        "**Slower than a rival**",
        defects(log, reasons_in(folder, "cuda" if in_graphs(log) else "cpu")),
        "**Without a time**",
        failures(log),
    )
    return "\n\n".join(parts)


def headline(log: Log, place: str) -> str:
    """Picture and summary. place: of the log, from the page on, without its ending."""
    count = len({e.model for e in log.entries if e.ours})
    whose = f" of {library(log)}" if library(log) else ""
    about = (
        f"**{count} networks{whose}, {log.device}** ({log.date}). Times as fast as {beside(log)}"
    )
    graphs = "all in CUDA graphs, " if in_graphs(log) else ""
    rest = f"{graphs}images also channels-last: [every network](bench/results/wide/README.md)."
    return f"{about}, {rest}\n\n![]({place}.png)\n\n{summary(log)}"


def line(e: Entry) -> str:
    """An entry on one line, times in microseconds."""
    parts = [f"{e.model} {size(column(e))}:"]
    if e.own is not None:
        parts.append(f"ours {e.own:.0f}")
    if e.arranged is not None:
        parts.append(f"arranged {e.arranged.graph or e.arranged.call:.0f}")
    parts += [f"{name} {min(t.call, t.graph or t.call):.0f}" for name, t in e.rivals.items()]
    found = ratio(e)
    parts += [f"{found:.2f} x"] if found else []
    return "  ".join([*parts, *(f"{way}: {why[:200]}" for way, why in e.absent.items())])


def listed(networks: Sequence[Network]) -> str:
    """Their names, and how many dtypes and batches of each."""
    counts = Counter(n.name for n in networks)
    return ", ".join(f"{name} ({count})" for name, count in counts.items()) or "none"


def chart(log: Log, path: Path) -> None:
    """A dot for each network at each batch, a panel for each dtype, sorted by the geometric mean. Raises ImportError without matplotlib."""
    figures: Any = importlib.import_module("matplotlib.figure")
    found = ranked(log.entries)
    dtypes = sorted({e.dtype for _, e in found})
    rows = max([len({e.model for _, e in found if e.dtype == d}) for d in dtypes], default=1)
    figure = figures.Figure(figsize=(7 * max(1, len(dtypes)), 2 + 0.17 * rows), layout="constrained")  # fmt: skip
    for k, dtype in enumerate(dtypes):
        panel(figure.add_subplot(1, len(dtypes), k + 1), [(r, e) for r, e in found if e.dtype == dtype])  # fmt: skip
    figure.suptitle(f"Times as fast as {beside(log).replace('`', '')}{', in CUDA graphs' if in_graphs(log) else ''}, {log.device}", fontsize=11)  # fmt: skip
    figure.savefig(path, dpi=110)


def panel(axes: Any, found: Sequence[tuple[float, Entry]]) -> None:
    """Of one dtype."""

    def mean(name: str) -> float:
        return statistics.geometric_mean(r for r, e in found if e.model == name)

    names = sorted({e.model for _, e in found}, key=mean)
    for batch, colour in COLOURS.items():
        of = [(r, names.index(e.model)) for r, e in found if e.arguments["batch"] == batch]
        if of:
            worst = names[min(of)[1]]
            words = f"batch {batch}: mean {statistics.geometric_mean(r for r, _ in of):.2f}, worst {min(of)[0]:.2f} ({title(worst)})"  # fmt: skip
            axes.scatter(*zip(*of, strict=True), s=14, color=colour, label=words, zorder=3)
    axes.axvline(1, color="#d1495b", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g} ×")
    axes.set_yticks(range(len(names)), [title(n) for n in names], fontsize=7)
    axes.set_ylim(-1, len(names))
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(labelsize=7)
    kind = TYPES.get(found[0][1].dtype, found[0][1].dtype)
    axes.legend(title=kind, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=7)
