"""The report of packing a model's weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from typing import NamedTuple

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table


class PackedRow(NamedTuple):
    """One layer, or the matrices of experts. shape: out_features, in_features; of experts, their number first. error: ||weight - decoded||
    / ||weight||; None if the original weight is unknown. before, after: bytes of the weight."""

    name: str
    format: str
    shape: tuple[int, ...]
    error: float | None
    before: int
    after: int


@dataclass(frozen=True)
class PackingReport:
    """rows: the packed layers. left: by name, the layers, and other parameters of two or more dimensions, that were not packed, and why.
    before, after: bytes of all parameters and buffers of the model."""

    rows: tuple[PackedRow, ...]
    left: Mapping[str, str]
    before: int
    after: int

    def __str__(self) -> str:
        table = Table(box=SIMPLE)
        table.add_column("layer", overflow="fold")
        table.add_column("format")
        for name in ("shape", "error", "kB", "packed kB"):
            table.add_column(name, justify="right")
        for r in self.rows:
            error = "" if r.error is None else f"{r.error:.2e}"
            shape = " × ".join(map(str, r.shape))
            table.add_row(r.name, r.format, shape, error, _kilobytes(r.before), _kilobytes(r.after))
        written = StringIO()
        Console(file=written, width=120).print(table)
        lines = [line.rstrip() for line in written.getvalue().splitlines() if line.strip()]
        lines += [f"not packed: {name}: {reason}" for name, reason in self.left.items()]
        share = self.after / self.before if self.before else 1.0
        before, after = _kilobytes(self.before), _kilobytes(self.after)
        return "\n".join([*lines, f"the whole model: {before} kB, now {after} kB ({share:.1%})"])


def _kilobytes(count: int) -> str:
    return f"{count / 1000:,.1f}"
