"""Draws which worker was busy with what, and when. Only this module needs matplotlib, which is optional."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

_WAIT = "#e4e4e4"
_LISTED = 30  # stages that the legend has room for


class Bar(NamedTuple):
    """The work of a worker from `start` to `end`, in seconds. waits: it waited before the stage."""

    worker: int
    start: float
    end: float
    stage: str
    waits: bool


def draw(bars: Sequence[Bar], workers: int, path: Path) -> None:
    """One row per worker, from the top; one colour per stage. White is time between bars. Raises ImportError without matplotlib."""
    matplotlib: Any = importlib.import_module("matplotlib")
    collections, figures, patches = (
        importlib.import_module(f"matplotlib.{name}")
        for name in ("collections", "figure", "patches")
    )
    names = list(dict.fromkeys(b.stage for b in sorted(bars, key=lambda b: b.start)))
    palette = matplotlib.colormaps["tab20"]
    colours = {name: palette(k % 20) for k, name in enumerate(names)}
    boxes: list[list[tuple[float, float]]] = []
    for b in bars:
        left, right, top, bottom = b.start * 1e6, b.end * 1e6, b.worker, b.worker + 1
        boxes.append([(left, top), (right, top), (right, bottom), (left, bottom)])
    faces = [_WAIT if b.waits else colours[b.stage] for b in bars]
    figure = figures.Figure(figsize=(14, 6), layout="constrained")
    axes = figure.add_subplot()
    axes.add_collection(collections.PolyCollection(boxes, facecolors=faces, edgecolors="none"))
    end = max((b.end for b in bars), default=0.0)
    axes.set(xlim=(0, end * 1e6), ylim=(workers, 0), xlabel="microseconds", ylabel="worker")
    axes.yaxis.get_major_locator().set_params(integer=True)
    shown = [patches.Patch(color=colours[name], label=name) for name in names[:_LISTED]]
    shown.append(patches.Patch(color=_WAIT, label="waits"))
    figure.legend(handles=shown, loc="outside right upper", fontsize=7)
    figure.savefig(path, dpi=150)
