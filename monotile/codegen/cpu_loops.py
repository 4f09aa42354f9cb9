"""Loops over a step's region, written so that a C compiler vectorises the innermost one."""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from monotile.analysis.affine import Affine, affine
from monotile.codegen.address import readable, stored
from monotile.codegen.base import Emitter, Range, Site, unflatten
from monotile.codegen.expression import SUFFIX, is_index
from monotile.codegen.writer import Block
from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, add, children, idx, loads, mul, substitute
from monotile.ir.program import Program, Scatter
from monotile.schedule.plan import Plan
from monotile.target.target import Target

SHORTEST = (
    4  # an innermost loop with fewer iterations than this is not worth cutting a flattened one for
)

Point = Mapping[str, Expr]


class Loops(Emitter):
    """Loop nests of one thread. kernels: the register tiles that the stages call, as text, by name."""

    def __init__(
        self, program: Program, plan: Plan, target: Target, options: Options, *, wide: bool
    ) -> None:
        super().__init__(program, plan, target, options, wide=wide)
        self.kernels: dict[str, str] = {}

    def kernel(
        self, template: str, m: int, n: int, dtype: DType, storage: Mapping[str, str]
    ) -> str:
        """The name of the instance of `device/cpu/<template>.h` for an m x n tile; storage: types of the sides."""
        name = "_".join((template, str(m), str(n), SUFFIX[dtype], *storage.values()))
        macros = {"NAME": name, "M": m, "N": n, "C": SUFFIX[dtype], **storage}
        lines = [f"#define MT_{key} {value}" for key, value in macros.items()]
        self.kernels[name] = "\n".join([*lines, f'#include "cpu/{template}.h"', ""])
        return name

    def simd(self, block: Block, clauses: str = "") -> None:
        """Mark an innermost loop as vectorisable, unless what stands in it must happen in order."""
        if not any("MT_CHECK" in line or line.lstrip().startswith("for") for line in block.lines):
            block.pragma = f"#pragma omp simd{clauses}"

    def counted(self, variable: Axis, count: str) -> tuple[str, list[str]]:
        """Head of the loop in which `variable` runs from 0 to `count` - 1, and what it defines."""
        name = variable.name
        return f"for (idx {name} = 0; {name} < {count}; ++{name})", [name]

    @contextmanager
    def over(self, ranges: Sequence[Range]) -> Generator[None]:
        """Plain loops over all of `ranges`, the last one innermost."""
        with ExitStack() as stack:
            for r in ranges:
                stack.enter_context(self.writer.open(*self.counted(r.variable, self.count(r))))
            yield

    def count(self, r: Range) -> str:
        return self.short(r.count)

    def short(self, count: str) -> str:
        """`count` as a literal or a variable of the innermost block."""
        if count.isdigit() or count.isidentifier():
            return count
        variable = self.writer.fresh("n")
        self.writer.write(f"const idx {variable} = {count};")
        return variable

    @contextmanager
    def blocks(self, name: str, extent: int, count: str, size: int) -> Generator[tuple[Expr, str]]:
        """A loop that cuts `count` positions (at most `extent`) into blocks of `size`: where a block begins, and
        text of how long it is. No loop where there is only one block."""
        if extent <= size:
            yield idx(0), count
            return
        variable = Axis(name, -(-extent // size))
        even = count.isdigit() and int(count) % size == 0
        times = str(int(count) // size) if even else f"({count} + {size - 1}) / {size}"
        with self.writer.open(*self.counted(variable, times)):
            taken = str(size)
            if not even:
                taken = self.short(f"mt_min_idx({size}, {count} - {name} * {size})")
            yield mul(variable, idx(size)), taken

    @contextmanager
    def along(
        self,
        variable: Axis,
        count: str,
        run: int,
        point: Callable[[Expr], Point],
        uses: Sequence[Expr],
    ) -> Generator[tuple[Block, Point]]:
        """The innermost loop or two over `variable`, from 0 to `count` - 1; gives the block and the point.

        Where the addresses in `uses` run straight along the variable that is one loop, else it is cut
        into runs of `run`, which a flattened dimension's last axis does not leave.
        """
        name, extent = variable.name, variable.extent
        whole = point(variable)
        if run < min(SHORTEST, extent) or all(
            self.straight(substitute(e, dict(whole)), variable) for e in uses
        ):
            with self.writer.open(*self.counted(variable, count)) as block:
                yield block, whole
            return
        with (
            self.blocks(f"{name}o", extent, count, run) as (start, taken),
            self.writer.open(*self.counted(Axis(name, run), taken)) as block,
        ):
            yield block, point(add(start, Axis(name, run)))

    def straight(self, e: Expr, variable: Axis) -> bool:
        """Whether every index in `e` is a sum in which `variable` stands alone."""
        if isinstance(e, Load):
            if any(loads(i) for i in e.index):
                return all(self.straight(i, variable) for i in e.index)
            return plain(self.offset(e), variable)
        if is_index(e):
            return plain(affine(e), variable)
        return all(self.straight(c, variable) for c in children(e))

    def offset(self, e: Load) -> Affine:
        """Of a Load without data-dependent indices; of a tensor in a register, its own."""
        table = self.tables.get(e.tensor.name, 0)
        places = stored(self.plan.places[e.tensor.name])
        if not places:
            return Affine(())
        place = readable(places, own=e.tensor.name in self._own)
        return self.layout(e.tensor, place).offset(e.index[table:])

    def uses(self, site: Site) -> list[Expr]:
        """Everything that is read or written for one element of the step, as expressions over its axes."""
        out: list[Expr] = []
        for s in (site.anchor, *site.followers):
            if isinstance(s, Scatter):
                out += [*s.index, s.value]
            else:
                out += [s.body, Load(s.out, s.axes)]
        return out

    def ordered(self, site: Site) -> list[Range]:
        """The site's ranges, the one that holds the last axis innermost."""
        last = len(site.anchor.axes) - 1
        return sorted(site.ranges, key=lambda r: last in r.dim.axes)

    def moved(self, site: Site, r: Range, local: Expr) -> Point:
        """The site's point with `local` as the position in the part of `r` that the task has."""
        axes = [site.anchor.axes[p] for p in r.dim.axes]
        return {**site.point, **unflatten(add(r.origin, local), axes)}

    def run(self, site: Site, r: Range) -> int:
        """The longest run of positions, aligned in every task, that stays within a row of the last axis."""
        if len(r.dim.axes) < 2:
            return r.variable.extent
        row = site.anchor.axes[r.dim.axes[-1]].extent
        origin = affine(r.origin)
        found = math.gcd(row, origin.constant, *(k for _, k in origin.terms))
        return found if row > 1 else 1


def plain(a: Affine, variable: Axis) -> bool:
    return all(
        atom == variable or not Affine(((atom, 1),)).mentions(variable) for atom, _ in a.terms
    )


def stride(a: Affine, variable: Axis) -> int | None:
    """The coefficient of `variable`, None where it does not stand alone."""
    return a.coefficient(variable) if plain(a, variable) else None
