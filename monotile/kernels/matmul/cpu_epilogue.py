"""Epilogues of products on the CPU: for a rectangle of sums at the end, or for each block after its last products."""

from collections.abc import Iterator

from monotile.codegen.address import stored
from monotile.codegen.lines import stride
from monotile.codegen.site import Point, at_start, moved, unflatten
from monotile.codegen.spelling import bare
from monotile.ir.expr import Axis, Expr, Load, add, idx, loads, mul, substitute
from monotile.ir.program import Compute
from monotile.kernels.common.cpu_columns import of_columns, read_columns
from monotile.kernels.matmul.cpu_packing import Packing
from monotile.kernels.matmul.panel_prefetch import LINE


class CpuEpilogue(Packing):
    """The epilogue of one contraction. Each pair is of rows and columns: the position of the rectangle, the numbers of rows and columns
    (texts), and their position in the rectangle."""

    @property
    def pitch(self) -> int:
        """Elements from one row of sums to the next."""
        return self.bn if self.tiles.in_one else self.columns

    @property
    def block(self) -> tuple[Expr, Expr]:
        """The position of the current block of rows and panel of columns in the rectangle."""
        return Axis("mb", self.rows), Axis("nb", self.columns)

    def hold_columns(self, n0: Expr, nc: str) -> None:
        """Writes the per-column values of a rectangle's columns into arrays."""
        axes = frozenset(self.c.axes[p] for p in self.n.dim.axes)
        self.finished, self.held = of_columns(self.site, axes)
        for c in self.held:
            self._hold(c, Axis("column", self.columns), nc, add(self.n.origin, n0))

    def finish(
        self, origin: tuple[Expr, Expr], counts: tuple[str, str], start: tuple[Expr, Expr]
    ) -> None:
        """Writes the epilogue of the sums."""
        e, site = self.e, self.site
        row, column = Axis("row", self.rows), Axis("column", self.columns)
        axes = [self.c.axes[p] for p in self.n.dim.axes]
        first, line = add(self.n.origin, add(origin[1], start[1])), add(start[0], row)
        with e.writer.open(*e.counted(row, counts[0])):
            across = moved(site, self.m, add(origin[0], line))

            def point(local: Expr) -> Point:
                return {**across, **unflatten(add(first, local), axes)}

            def write(here: Point, local: Expr) -> None:
                at = add(start[1], local)
                read_columns(e, self.held, at)
                down, along = (row, local) if self.tiles.in_one else (line, at)
                place = e.index(add(mul(down, idx(self.pitch)), along))
                e.finish(self.finished, here, f"sums[{bare(place)}]", self.dtype)

            e.along(column, counts[1], first, point, e.later_uses(site), write)

    def prefetch(self, origin: tuple[Expr, Expr], counts: tuple[str, str]) -> None:
        """Writes the prefetch of the cache lines that the epilogue of the block reads and writes, row by row, for tensors with contiguous
        rows."""
        e, row, (mb, nb) = self.e, Axis("row", self.bm), self.block
        axes, column = [self.c.axes[p] for p in self.n.dim.axes], Axis("column", self.columns)
        first = add(self.n.origin, add(origin[1], add(nb, column)))
        point: dict[str, Expr] = {
            **moved(self.site, self.m, add(origin[0], add(mb, row))),
            **unflatten(first, axes),
        }
        lines = list(self._own(point, row, column))
        if not lines or not self.method.ahead("block", "own"):
            return
        with e.writer.open(*e.counted(row, counts[0])):
            for x, written in lines:
                index = [substitute(i, {column.name: idx(0)}) for i in x.index]
                if written:
                    place = stored(e.plan.places[x.tensor.name])[0]
                    pointer, offset = e.address(x.tensor, index, place)
                else:
                    pointer, offset = e.element(Load(x.tensor, tuple(index)))
                head = f"for (idx l = 0; l < {counts[1]}; l += {LINE // x.dtype.itemsize})"
                e.writer.write(
                    f"{head} __builtin_prefetch({pointer} + {bare(offset)} + l, {written}, 3);"
                )

    def _own(self, point: dict[str, Expr], row: Axis, column: Axis) -> Iterator[tuple[Load, int]]:
        """The loads, and the stores (1), of each row with contiguous lines of its own."""
        made = [s for s in (self.site.anchor, *self.site.followers) if isinstance(s, Compute)]
        names = {s.out.name for s in made}
        read = dict.fromkeys(
            x for s in made[1:] for x in loads(s.body) if x.tensor.name not in names
        )
        found = [*((x, 0) for x in read), *((Load(s.out, s.axes), 1) for s in made)]
        for x, written in found:
            here = substitute(x, point)
            if any(loads(i) for i in x.index) or not isinstance(here, Load):
                continue
            where = self.e.lines.offset(here)
            if stride(where, column) == 1 and where.mentions(row):
                yield here, written

    def _hold(self, c: Compute, column: Axis, nc: str, origin: Expr) -> None:
        """Writes the computation of a value of each column into an array."""
        e = self.e
        axes = [self.c.axes[p] for p in self.n.dim.axes]
        fixed = at_start(self.site, self.m).point
        e.writer.write(f"{e.values[c.out.dtype]} {c.out.name}[{self.columns}];")

        def point(local: Expr) -> Point:
            return {**fixed, **unflatten(add(origin, local), axes)}

        def write(here: Point, local: Expr) -> None:
            text = bare(e.body(c.body, here))
            e.writer.write(f"{c.out.name}[{bare(e.index(local))}] = {text};")

        e.along(column, nc, origin, point, [c.body], write)
