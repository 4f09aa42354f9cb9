"""The report of a specialised model: what was removed because of zero parameters, and the values that must not change."""

from collections.abc import Mapping, Sequence, Set
from io import StringIO

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from monotile.analysis.pruning.facts import Zeros
from monotile.analysis.work import Work

NO_WORK = Work(0, {})


class Removed(msgspec.Struct, frozen=True):
    """Channels, heads or features that were removed together. parameters: by name, with the dimension that became smaller; those of one
    layer. kept, of: units kept, and units before."""

    parameters: tuple[tuple[str, int], ...]
    kept: int
    of: int


class Gathered(msgspec.Struct, frozen=True):
    """A parameter of which the kernel reads a smaller copy. kept: maps each dimension that shrinks to the kept coordinates, ascending.
    nbytes: of the copy."""

    kept: tuple[tuple[int, tuple[int, ...]], ...]
    nbytes: int


class Specialised(msgspec.Struct, frozen=True):
    """removed: in the order of the network. gathered, relied: by the parameter's name: smaller copies, and the values that must not
    change. ascending: parameters of which each byte has to hold two pairs of 2-bit numbers that ascend (2:4), whether anything was
    removed or not. before, after: the work of a call, dense and now."""

    removed: tuple[Removed, ...] = ()
    gathered: dict[str, Gathered] = {}
    relied: dict[str, Zeros] = {}
    before: Work = NO_WORK
    after: Work = NO_WORK
    ascending: tuple[str, ...] = ()

    @property
    def multiply_adds(self) -> tuple[int, int]:
        """Of a call, dense and now."""
        before, after = (sum(w.operations.values()) // 2 for w in (self.before, self.after))
        return before, after

    @property
    def nbytes(self) -> int:
        """Bytes of the copies."""
        return sum(x.nbytes for x in self.gathered.values())

    def of(self, names: Set[str]) -> "Specialised":
        """Without parameters that have other names."""
        rows = [tuple(p for p in r.parameters if p[0] in names) for r in self.removed]
        return msgspec.structs.replace(
            self,
            removed=tuple(
                msgspec.structs.replace(r, parameters=row)
                for r, row in zip(self.removed, rows, strict=True)
            ),
            gathered={n: g for n, g in self.gathered.items() if n in names},
            relied={n: z for n, z in self.relied.items() if n in names},
        )

    def in_order(self, orders: Mapping[str, Sequence[int]]) -> "Specialised":
        """For parameters in the model's order, of which dimension k has been dimension `orders[name][k]`."""

        def at(name: str, d: int) -> int:
            return orders[name][d] if name in orders else d

        removed = [
            msgspec.structs.replace(r, parameters=tuple((n, at(n, d)) for n, d in r.parameters))
            for r in self.removed
        ]
        gathered = {
            n: msgspec.structs.replace(g, kept=tuple(sorted((at(n, d), c) for d, c in g.kept)))
            for n, g in self.gathered.items()
        }
        relied = {
            n: z.permuted(sorted(range(len(z.shape)), key=list(orders[n]).__getitem__))
            if n in orders
            else z
            for n, z in self.relied.items()
        }
        return msgspec.structs.replace(
            self, removed=tuple(removed), gathered=gathered, relied=relied
        )

    def __str__(self) -> str:
        if not self.removed:
            return "nothing was removed"
        table = Table(box=SIMPLE)
        table.add_column("parameters", overflow="fold")
        for name in ("kept", "of"):
            table.add_column(name, justify="right")
        for r in self.removed:
            names = ", ".join(f"{name}[{d}]" for name, d in r.parameters)
            table.add_row(names, str(r.kept), str(r.of))
        written = StringIO()
        Console(file=written, width=120).print(table)
        lines = [line.rstrip() for line in written.getvalue().splitlines() if line.strip()]
        before, after = self.multiply_adds
        share = after / before if before else 1.0
        lines.append(f"multiply-adds: {before:,}, now {after:,} ({share:.1%})")
        lines.append(
            f"smaller copies of {len(self.gathered)} parameters: {self.nbytes / 1000:,.1f} kB"
        )
        return "\n".join(lines)
