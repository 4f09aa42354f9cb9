"""The floors of a Plan's stages, beside what they take, as a table."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from monotile.plan.floors import StageFloor
from monotile.runtime.profile import StageTimes

LARGEST = 20  # stages that are listed
WIDTH = 140  # characters of a line


def show_times(floors: Sequence[StageFloor], measured: Mapping[str, StageTimes] | None) -> None:
    """Prints what bounds the network, and its largest stages: by what they lose, where they are measured, else by their floors."""
    console = Console(highlight=False, width=WIDTH)
    console.print(bound(floors), soft_wrap=True)
    if measured is not None:
        took = sum(s.rounds * (s.slowest + s.wait) for s in measured.values())
        least = sum(f.runs * f.seconds for f in floors)
        console.print(f"measured: {_us(took)} in all stages, {took / least:.2f} times their floors")
    console.print()
    console.print(table(floors, measured))


def bound(floors: Sequence[StageFloor]) -> str:
    """Which of the three takes longest, and the others."""
    moved = sum(f.runs * (f.memory + f.cache) for f in floors)
    worked = sum(f.runs * f.operations for f in floors)
    waits = sum(f.runs for f in floors if f.waiting)
    parts = {
        "bytes": (sum(f.runs * f.moving for f in floors), f"{moved / 1e6:.1f} MB"),
        "operations": (sum(f.runs * f.computing for f in floors), f"{worked / 1e9:.2f} G"),
        "hand-offs": (sum(f.runs * f.waiting for f in floors), f"{waits} barriers"),
    }
    name = max(parts, key=lambda part: parts[part][0])
    each = ", ".join(f"{part} {_us(t)} ({words})" for part, (t, words) in parts.items())
    least = sum(f.runs * f.seconds for f in floors)
    return f"bound by {name}: {each}; the stages' floors together {_us(least)}"


def table(floors: Sequence[StageFloor], measured: Mapping[str, StageTimes] | None) -> Table:
    """The stages that lose most, a line each; by their floors where nothing is measured."""

    def lost(f: StageFloor) -> float:
        found = (measured or {}).get(f.stage)
        return found.rounds * (found.slowest + found.wait - f.seconds) if found else 0.0

    columns = (
        "stage",
        "runs",
        "MB",
        "M operations",
        "floor, us a run",
        "of it",
        "measured",
        "lost in all",
    )
    out = Table(*columns[: 6 if measured is None else 8], box=None, pad_edge=False)
    for column in out.columns[1:]:
        column.justify = "right"
    ranked = sorted(floors, key=lambda f: (lost(f), f.runs * f.seconds), reverse=True)
    for f in ranked[:LARGEST]:
        parts = {"bytes": f.moving, "operations": f.computing, "hand-off": f.waiting}
        line = [
            f.stage, str(f.runs), f"{(f.memory + f.cache) / 1e6:.3f}", f"{f.operations / 1e6:.1f}",
            f"{f.seconds * 1e6:.2f}", max(parts, key=lambda p: parts[p]),
        ]  # fmt: skip
        if measured is not None:
            found = measured.get(f.stage)
            line += (
                [f"{(found.slowest + found.wait) * 1e6:.2f}", _us(lost(f))] if found else ["", ""]
            )
        out.add_row(*line)
    return out


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"
