"""A log as tables and as a bar chart."""

import importlib
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from monotile.compare.jobs import ARRANGED
from monotile.compare.results import Entry, Log, Timing
from monotile.runtime.measure import duration


def title(entry: Entry) -> str:
    arguments = [f"{k}={v}" for k, v in entry.arguments.items()]
    return ", ".join([entry.model, *([entry.dtype] if entry.dtype else []), *arguments])


def table(entry: Entry) -> Table:
    """One network: Monotile first, then the rivals, fastest first."""
    graphs = any(t.graph is not None for t in _timings(entry))
    shown = Table(title=title(entry), title_justify="left", box=SIMPLE)
    columns = [
        "",
        "per call",
        *(["in a CUDA graph"] if graphs else []),
        "of Monotile's",
        "kernels",
        "compile",
        "error",
    ]
    for name in columns:
        shown.add_column(name, justify="left" if not name else "right")
    own = entry.own
    rows = sorted(entry.rivals.items(), key=lambda item: _best(item[1]))
    own_rows = [("Monotile", "ours", entry.ours), (ARRANGED, ARRANGED, entry.arranged)]
    for name, key, t in [*own_rows, *((n, n, t) for n, t in rows)]:
        if t is None:
            continue
        ratio = "" if own is None or t is entry.ours else f"{_best(t) / own:.2f} x"
        found = entry.errors[key]
        graph = [_time(t.graph)] if graphs else []
        kernels = "" if t.kernels is None else str(t.kernels)
        shown.add_row(name, _time(t.call), *graph, ratio, kernels, _time(t.compile), f"{found:.1e}")
    return shown


def notes(entry: Entry) -> list[str]:
    """Lines below the table: the floor, and absent rivals."""
    lines: list[str] = []
    if entry.floor is not None and entry.own is not None:
        f = entry.floor
        lines.append(
            f"floor {duration(f.time * 1e-6)}: {f.bytes / 1e6:.1f} MB to move, {f.operations / 1e9:.2f} G operations;"
            f" Monotile takes {entry.own / f.time:.1f} times that"
            if f.time
            else "nothing to move"
        )
    lines += [
        f"{'Monotile' if name == 'monotile' else name}: {why}" for name, why in entry.absent.items()
    ]
    return lines


def markdown(log: Log) -> str:
    """One row per network: Monotile, the fastest rival, eager."""
    lines = [
        "| | Monotile | fastest rival | | eager | | floor |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for e in log.entries:
        own, best = e.own, e.best
        if own is None:
            lines.append(f"| {title(e)} | {e.absent.get('monotile', 'absent')} | | | | | |")
            continue
        eager = e.rivals.get("eager")
        module = _best(eager) if eager else None
        cells = [
            title(e),
            f"{own:.1f}" + (f" ({ARRANGED} {_best(e.arranged):.1f})" if e.arranged else ""),
            f"{best[1]:.1f} ({best[0]})" if best else "",
            f"{best[1] / own:.2f} ×" if best else "",
            f"{module:.1f}" if module else "",
            f"{module / own:.2f} ×" if module else "",
            f"{e.floor.time:.1f}" if e.floor else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def chart(log: Log, path: Path) -> None:
    """Bars of each network's times; lower is faster. Raises ImportError without matplotlib."""
    figures: Any = importlib.import_module("matplotlib.figure")
    entries = [e for e in log.entries if e.own and e.rivals]
    rows = max(1, (len(entries) + 2) // 3)
    figure = figures.Figure(figsize=(14, 3.2 * rows), layout="constrained")
    for k, e in enumerate(entries):
        own = e.own or 1.0
        axes = figure.add_subplot(rows, 3, k + 1)
        ranked = sorted(e.rivals.items(), key=lambda item: -_best(item[1]))
        names = [*(name for name, _ in ranked), "Monotile"]
        times = [*(_best(t) for _, t in ranked), own]
        colours = ["#9aa7b4"] * len(ranked) + ["#d1495b"]
        bars = axes.barh(names, times, color=colours)
        axes.bar_label(bars, [f"{duration(t * 1e-6)}" for t in times], padding=3, fontsize=8)
        if e.floor is not None:
            axes.axvline(e.floor.time, color="#3b3b3b", linewidth=1, linestyle=":")
        axes.set_title(title(e), fontsize=10)
        axes.set_xlabel("microseconds", fontsize=8)
        axes.set_xlim(0, max(times) * 1.25)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Time of a call, {log.device}; dotted: floor", fontsize=11)
    figure.savefig(path, dpi=150)


def _timings(entry: Entry) -> list[Timing]:
    return [*([entry.ours] if entry.ours else []), *entry.rivals.values()]


def _best(t: Timing) -> float:
    return min(t.call, t.graph or t.call)


def _time(microseconds: float | None) -> str:
    return "" if microseconds is None else duration(microseconds * 1e-6)
