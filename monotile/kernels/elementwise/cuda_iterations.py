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
from monotile.ir.expr import idx
from monotile.ir.program import Compute
from monotile.kernels.common.cuda_fetches import Fetch, write_unpacked
from monotile.kernels.common.cuda_threads import inside

LONG = 2  # a loop with more rounds of `count` iterations than this has no branches


@dataclass(frozen=True, slots=True)
class Iterations:
    """count: iterations whose loads are issued together. fetches: the steps in which those of vector `e` are. finish: writes the computation
    of a vector in the block, with their results unpacked."""

    e: VectorEmitter
    site: Site
    own: ThreadMap
    count: int
    fetches: Sequence[Fetch]
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
        """Whether every task has a vector, and computing one twice is harmless: the map only stores to memory."""
        site, e, whole = self.site, self.e, [str(r.variable.extent) for r in self.site.ranges]
        if any(r.low or r.first for r in site.ranges):
            return False
        if len(whole) != 1 and whole != [r.count for r in site.ranges]:
            return False
        steps = (site.anchor, *site.followers)
        return all(isinstance(s, Compute) and not e.hands_on(s.out) for s in steps)

    @property
    def _first(self) -> list[Fetch]:
        """Those of which the addresses depend on the vector alone."""
        return [f for f in self.fetches if not f.after]

    def fetch(self, first: str) -> None:
        """Declares the results and writes the loads of `count` iterations from vector `first` on."""
        for f in self._first:
            f.declare(self.e.writer, self.count)
        with self._each(first), self._where_inside():
            for f in self._first:
                f.load(self.e.writer, "e")

    def compute(self, first: str) -> None:
        """Writes their computations, after `fetch`."""
        for f in self.fetches:
            if f.after:
                f.declare(self.e.writer, self.count)
                with self._each(first), self._where_inside():
                    f.load(self.e.writer, "e")
        with self._each(first), self._where_inside() as block:
            write_unpacked(self.e.writer, self.fetches)
            self.finish(block)

    def _write_short(self) -> None:
        with self._rounds(str(self.own.groups)):
            self.fetch("first")
            self.compute("first")

    def _write_long(self) -> None:
        e, w = self.e, self.e.writer
        groups = self._vectors()
        for f in self._first:
            f.declare(w, self.count)
        with self._each(self.own.thread, groups):
            for f in self._first:
                f.load(w, "e")
        with self._rounds(groups):
            for f in self._first:
                f.declare(w, self.count, "later_")
            with self._each(f"first + {self._step}", groups):
                for f in self._first:
                    f.load(w, "e", "later_")
            for f in self.fetches:
                if f.after:
                    f.declare(w, self.count)
                    with self._each("first", groups):
                        f.load(w, "e")
            with self._each("first", groups) as block:
                w.write(f"const bool valid = first + turn * {self.own.threads} < {groups};")
                e.stored_if = "valid"
                write_unpacked(w, self.fetches)
                self.finish(block)
                e.stored_if = ""
            for f in self._first:
                w.write("#pragma unroll")
                w.write(f"for (idx turn = 0; turn < {self.count}; ++turn) {f.name}[turn] = later_{f.name}[turn];")  # fmt: skip

    def _vectors(self) -> str:
        """Text of this task's number of vectors."""
        if len(self.site.ranges) != 1:
            return str(self.own.groups)
        (r,) = self.site.ranges
        if r.count == str(r.variable.extent):
            return str(self.own.groups)
        name, width = self.e.writer.fresh("groups"), self.own.width
        self.e.writer.write(f"const idx {name} = ({r.count} + {width - 1}) / {width};")
        return name

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
