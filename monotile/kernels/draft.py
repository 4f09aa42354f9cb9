"""A group cut into tasks, and what cutting needs to know."""

import math
from dataclasses import dataclass, field

from monotile.ir.program import Program
from monotile.kernels.matmul.blocks import Ways
from monotile.plan.nodes import BoxDim, Contract, Step
from monotile.schedule.groups import Group
from monotile.targets.target import Target


@dataclass(frozen=True, slots=True)
class Local:
    """A tensor of which a task holds `box` on chip, at byte `offset`."""

    offset: int
    box: tuple[BoxDim, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """A group cut into tasks. shared_bytes: on-chip memory. seconds: the model's guess for the stage."""

    group: Group
    grid: tuple[int, ...]
    steps: tuple[Step, ...]
    local: dict[str, Local]
    shared_bytes: int
    seconds: float

    @property
    def tasks(self) -> int:
        return math.prod(self.grid)


# A way to cut a product: seconds of the stage, method, its on-chip bytes, tile of rows and columns.
Choice = tuple[float, Contract, int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Context:
    """What cutting needs to know besides the group. tables: leading table dimensions of the weights that have some.

    drafts, ways, choices: what was found for groups and for products so far.
    """

    tables: dict[str, int]
    target: Target
    drafts: "dict[Group, Draft | None]" = field(default_factory=dict, repr=False)
    ways: Ways = field(default_factory=Ways, repr=False)
    choices: "dict[tuple[object, ...], Choice | None]" = field(default_factory=dict, repr=False)

    @staticmethod
    def of(program: Program, target: Target) -> "Context":
        return Context({w.tensor.name: w.table for w in program.weights if w.table}, target)
