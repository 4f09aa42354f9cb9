"""A map's loop over vectors, with the loads of several iterations issued before any is used.

In a loop of many iterations an iteration beyond the last vector computes the last one again and stores nothing: without branches the
iterations hide each other's latency, and the next iterations' vectors are prefetched. In a loop of few iterations, branches skip those
beyond the last vector.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from monotile.codegen.site import Site
from monotile.codegen.thread_map import ThreadMap
from monotile.codegen.vector import VectorEmitter
from monotile.codegen.writer import Block
from monotile.ir.expr import idx, loads
from monotile.ir.program import Compute, expressions
from monotile.kernels.common.cuda_threads import inside

LONG = 2  # a loop with more rounds of `count` iterations than this has no branches


@dataclass(frozen=True, slots=True)
class Iterations:
    """count: iterations whose loads are issued together. array: name of the results of the lambda `fetch_NAME`, which loads the operands of
    vector `e`; `turn` is their index. chain: those of gathered operands in steps, of which each takes the results of the steps before it.
    finish: writes the computation of a vector in the block."""

    e: VectorEmitter
    site: Site
    own: ThreadMap
    count: int
    array: str
    chain: Sequence[str]
    finish: Callable[[Block], None]

    def write(self) -> None:
        """Writes the loop."""
        if self.own.groups > LONG * self._step and self._may_repeat():
            self._write_long()
        else:
            self._write_short()

    @property
    def _step(self) -> int:
        """Vectors of `count` iterations of all threads."""
        return self.count * self.own.threads

    def _may_repeat(self) -> bool:
        """Whether every task has a vector, and computing one twice is harmless: the map only stores to memory and has no checked index."""
        site, e = self.site, self.e
        if e.sizes or len(site.ranges) != 1 or site.ranges[0].low or site.ranges[0].first:
            return False
        return all(
            isinstance(s, Compute)
            and not e.hands_on(s.out)
            and not any(loads(i) for x in expressions(s) for y in loads(x) for i in y.index)
            for s in (site.anchor, *site.followers)
        )

    def fetch(self, first: str) -> None:
        """Declares the array and writes the loads of `count` iterations from vector `first` on."""
        self._declare("")
        with self._each(first), self._where_inside():
            self._fetch("")

    def compute(self, first: str) -> None:
        """Writes their computations, after `fetch`."""
        with self._each(first), self._where_inside() as block:
            self.finish(block)

    def _write_short(self) -> None:
        with self._rounds(str(self.own.groups)):
            self.fetch("first")
            for k in range(len(self.chain)):
                self._fetch_step(k)
            self.compute("first")

    def _write_long(self) -> None:
        e, w = self.e, self.e.writer
        groups = self._vectors()
        self._declare("")
        with self._each(self.own.thread, groups):
            self._fetch("")
        with self._rounds(groups):
            self._declare("later_")
            with self._each(f"first + {self._step}", groups):
                self._fetch("later_")
            with self._each("first", groups) as block:
                w.write(f"const bool valid = first + turn * {self.own.threads} < {groups};")
                e.stored_if = "valid"
                self.finish(block)
                e.stored_if = ""
            w.write("#pragma unroll")
            w.write(f"for (idx turn = 0; turn < {self.count}; ++turn) {self.array}[turn] = later_{self.array}[turn];")  # fmt: skip

    def _vectors(self) -> str:
        """Text of this task's number of vectors."""
        (r,) = self.site.ranges
        if r.count == str(r.variable.extent):
            return str(self.own.groups)
        name, width = self.e.writer.fresh("groups"), self.own.width
        self.e.writer.write(f"const idx {name} = ({r.count} + {width - 1}) / {width};")
        return name

    def _declare(self, prefix: str) -> None:
        array = self.array
        self.e.writer.write(f"decltype(fetch_{array}(0)) {prefix}{array}[{self.count}]{{}};")

    def _fetch(self, prefix: str) -> None:
        self.e.writer.write(f"{prefix}{self.array}[turn] = fetch_{self.array}(e);")

    def _fetch_step(self, k: int) -> None:
        w, array, before = self.e.writer, self.chain[k], self.chain[:k]
        example = ", ".join(["0", *(f"{x}[0]" for x in before)])
        w.write(f"decltype(fetch_{array}({example})) {array}[{self.count}]{{}};")
        with self._each("first"), self._where_inside():
            given = ", ".join(["e", *(f"{x}[turn]" for x in before)])
            w.write(f"{array}[turn] = fetch_{array}({given});")

    @contextmanager
    def _rounds(self, groups: str) -> Generator[None]:
        head = f"for (idx first = {self.own.thread}; first < {groups}; first += {self._step})"
        with self.e.writer.open(head, ["first"], fence=True):
            yield

    @contextmanager
    def _each(self, first: str, groups: str = "") -> Generator[Block]:
        """A loop over the iterations from `first` on, with the vector `e` of each; beyond the last vector it is the last of `groups`, if
        that is given."""
        w = self.e.writer
        at = f"{first} + turn * {self.own.threads}"
        head = f"for (idx turn = 0; turn < {self.count}; ++turn)"
        with w.open(head, ["turn", "e"], fence=True) as block:
            block.pragma = "#pragma unroll"
            w.write(f"const idx e = {f'mt_min_idx({at}, {groups} - 1)' if groups else at};")
            yield block

    @contextmanager
    def _where_inside(self) -> Generator[Block]:
        """A block that runs only if the vector `e` exists."""
        e, ranges = self.e, self.site.ranges
        with (
            e.writer.open(f"if (e < {self.own.groups})", fence=True) as block,
            inside(e, ranges, self.own.element(ranges, idx(0))),
        ):
            yield block
