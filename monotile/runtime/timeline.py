"""Draws a profile. Only this module needs matplotlib, which is optional."""

from pathlib import Path
from typing import Any

from matplotlib import colormaps  # pyright: ignore[reportMissingImports]
from matplotlib.collections import PolyCollection  # pyright: ignore[reportMissingImports]
from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
from matplotlib.patches import Patch  # pyright: ignore[reportMissingImports]

from monotile.runtime.profile import Profile

_WAIT = "#e4e4e4"


def draw(profile: Profile, path: Path) -> None:
    """One row per worker, from the top. White is time between records."""
    names = list(dict.fromkeys(r.stage for r in sorted(profile.records, key=lambda r: r.start)))
    palette: Any = colormaps["tab20"]
    colours = {name: palette(k % 20) for k, name in enumerate(names)}
    boxes: list[list[tuple[float, float]]] = []
    faces: list[Any] = []
    for r in profile.records:
        left, right, top, bottom = r.start * 1e6, r.end * 1e6, r.worker, r.worker + 1
        boxes.append([(left, top), (right, top), (right, bottom), (left, bottom)])
        faces.append(_WAIT if r.kind == "wait" else colours[r.stage])
    figure: Any = Figure(figsize=(14, 6), layout="constrained")
    axes = figure.add_subplot()
    axes.add_collection(PolyCollection(boxes, facecolors=faces, edgecolors="none"))
    axes.set(xlim=(0, profile.seconds * 1e6), ylim=(profile.workers, 0))
    axes.set(xlabel="microseconds", ylabel="worker")
    axes.yaxis.get_major_locator().set_params(integer=True)
    shown = [Patch(color=colours[name], label=name) for name in names[:30]]
    figure.legend(
        handles=[*shown, Patch(color=_WAIT, label="waits")], loc="outside right upper", fontsize=7
    )
    figure.savefig(path, dpi=150)
