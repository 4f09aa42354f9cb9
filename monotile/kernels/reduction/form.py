"""Derived figures of a reduction by lanes: how its outputs are divided among the groups of lanes of a block."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from monotile.codegen.site import Site
from monotile.errors import InternalError
from monotile.ir.expr import Axis, Load, add, axes_of, idx, mul, substitute
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common.cuda_threads import placed, spread
from monotile.kernels.common.vectors import elements
from monotile.kernels.reduction.method import Reduce
from monotile.plan.nodes import Dim


@dataclass(frozen=True, slots=True)
class Form:
    """How the outputs of a step are divided. A group is `lanes` neighbouring threads, which share an output.

    axes: the reduce axes in the order in which they are flattened. width: neighbouring terms that a lane loads as a vector. vectors: of one
    output. turns: iterations of a group over the vectors of an output. groups: of the block. outputs: of a whole tile. together, runs,
    unroll: as in the method; the runs that a group has at once are `groups` apart.
    """

    anchor: Compute
    axes: tuple[Axis, ...]
    lanes: int
    width: int
    vectors: int
    turns: int
    groups: int
    outputs: int
    together: int
    runs: int
    unroll: int

    @property
    def parts(self) -> int:
        """Partial results of a lane."""
        return self.runs * self.together

    @property
    def all_runs(self) -> int:
        """Runs of a whole tile."""
        return self.outputs // self.together

    @property
    def rounds(self) -> int:
        """Iterations of a group over all runs, with `runs` runs in each."""
        return -(-self.all_runs // (self.groups * self.runs))

    @property
    def whole(self) -> bool:
        """Whether every group has `runs` runs in every round."""
        return self.rounds * self.runs * self.groups == self.all_runs

    @property
    def spread_out(self) -> bool:
        """Whether the combination across lanes leaves each output in a lane of its own."""
        return (
            1 < self.parts <= min(self.lanes, 32)
            and 1 << (self.parts - 1).bit_length() <= self.lanes
        )

    @property
    def dealt(self) -> bool:
        """Whether there are more outputs than lanes, and the combination across lanes leaves each lane its share of them."""
        return self.parts > self.lanes > 1

    @property
    def finishes(self) -> int:
        """Outputs whose epilogue a lane computes."""
        return 1 if self.spread_out else -(-self.parts // self.lanes)

    def run(self, v: str) -> str:
        """Text of the index of the group's run `v`."""
        text = f"{v} * {self.groups} + group" if self.runs > 1 else "group"
        return f"round * {self.groups * self.runs} + {text}" if self.rounds > 1 else text

    @property
    def steady(self) -> bool:
        """Whether a thread has the same vectors of weights in each execution of the step, each at a fixed number, so that registers can
        hold them."""
        return self.rounds == 1 and self.unroll >= self.turns and self.width > 1


def form_of(anchor: Compute | Scatter, dims: Sequence[Dim], method: Reduce, threads: int) -> Form:
    """The form of a step with this method, for a block of `threads` threads."""
    if not isinstance(anchor, Compute) or anchor.combiner is None:
        raise InternalError(f"{anchor.out.name} has nothing to reduce")
    order = method.order or tuple(range(len(anchor.reduce)))
    axes = tuple(anchor.reduce[p] for p in order)
    points = math.prod(a.extent for a in axes)
    width = method.vector if axes else 1
    return Form(
        anchor=anchor,
        axes=axes,
        lanes=method.lanes,
        width=width,
        vectors=points // width,
        turns=max(1, -(-points // (width * method.lanes))),
        groups=threads // method.lanes,
        outputs=elements(dims),
        together=method.together,
        runs=method.runs,
        unroll=method.unroll,
    )


def differs(x: Load, site: Site, form: Form) -> tuple[bool, bool]:
    """Whether the vectors of `x` differ between runs, and between the neighbouring outputs of one run."""
    run, u = Axis("run", max(1, form.all_runs)), Axis("u", form.together)
    where = spread(add(mul(run, idx(form.together)), u), site.ranges)
    where |= placed(site.point, where)
    used = frozenset[Axis]().union(*(axes_of(substitute(i, where)) for i in x.index))
    return run in used, u in used
