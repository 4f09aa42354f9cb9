"""A map's loop over vectors, with the loads of several iterations issued before any is used.

In a loop of many iterations an iteration beyond the last vector computes the last one again and stores nothing: without branches the
iterations hide each other's latency, and the next iterations' vectors are prefetched. In a loop of few iterations, branches skip those
beyond the last vector.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from monotile.codegen.site import Site
from monotile.codegen.thread_map import ThreadMap
from monotile.codegen.vector import VectorEmitter
from monotile.codegen.writer import Block
from monotile.ir.expr import idx
from monotile.ir.program import Compute
from monotile.kernels.common.cuda_fetches import Fetch
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

    def fetch(self, first: str) -> None:
        """Declares the results of the steps that depend on the vector alone, and writes their loads for `count` iterations from vector `first`
        on."""
        self._issue(self._first, first)

    def compute(self, first: str) -> None:
        """Writes the other steps and the computations, after `fetch`."""
        for f in self._later:
            self._issue([f], first)
        with self._each(first), self._where_inside() as block:
            self._compute(block)

    @property
    def _first(self) -> list[Fetch]:
        return [f for f in self.fetches if not f.after]

    @property
    def _later(self) -> list[Fetch]:
        return [f for f in self.fetches if f.after]

    def _issue(
        self, fetches: Sequence[Fetch], first: str, groups: str = "", prefix: str = ""
    ) -> None:
        """Writes the loads of some steps, without branches if `groups` is given. prefix: of the names of their results."""
        w = self.e.writer
        for f in fetches:
            f.declare(w, self.count, prefix)
        with self._each(first, groups), nullcontext() if groups else self._where_inside():
            for f in fetches:
                f.load(w, "e", prefix)

    def _compute(self, block: Block) -> None:
        for f in self.fetches:
            f.unpack(self.e.writer)
        self.finish(block)

    def _write_short(self) -> None:
        with self._rounds(str(self.own.groups)):
            self.fetch("first")
            self.compute("first")

    def _write_long(self) -> None:
        e, w = self.e, self.e.writer
        groups = self._vectors()
        self._issue(self._first, self.own.thread, groups)
        with self._rounds(groups):
            self._issue(self._first, f"first + {self._step}", groups, "later_")
            for f in self._later:
                self._issue([f], "first", groups)
            with self._each("first", groups) as block:
                w.write(f"const bool valid = first + turn * {self.own.threads} < {groups};")
                e.stored_if = "valid"
                self._compute(block)
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
