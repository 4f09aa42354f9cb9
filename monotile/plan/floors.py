"""Lower bounds on the time of a Plan's stages on a target: bytes to move, operations, and hand-offs.

Each byte that a stage reads or writes is counted once a run. Weights and inputs are read from device memory unless they stay in the
last-level cache between calls; intermediate results move through that cache. Data that is on chip within a stage is not counted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from monotile.analysis.cost import cost
from monotile.analysis.dependence import loads_of
from monotile.analysis.reuse import extents_of, footprint
from monotile.analysis.work import product_kind, product_rate
from monotile.ir.program import Compute, Program, Scatter, statements
from monotile.plan.nodes import Body, Choose, Plan, Repeat, Stage
from monotile.plan.places import ON_CHIP, Place, Register
from monotile.targets.target import Target

Places = Mapping[str, tuple[Place, ...]]


class StageFloor(msgspec.Struct, frozen=True):
    """One stage, or the hand-off between the iterations of a loop.

    runs: in a call, at most. memory, cache: bytes of a run, from device memory and through the last-level cache. operations: of products
    and of everything else. moving, computing, waiting: seconds of a run.
    """

    stage: str
    runs: int
    memory: int
    cache: int
    operations: int
    moving: float
    computing: float
    waiting: float

    @property
    def seconds(self) -> float:
        """Seconds of a run, with data movement and computation fully overlapped."""
        return max(self.moving, self.computing) + self.waiting


def floors(plan: Plan, program: Program, target: Target) -> tuple[StageFloor, ...]:
    """Floors of every stage of the Plan of `program`, in order; for a Choose, of all its bodies."""
    made = {s.out.name: s for s in statements(program.body) if isinstance(s, Compute | Scatter)}
    given = {t.name for t in (*program.inputs, *(w.tensor for w in program.weights))}
    weights = sum(w.tensor.nbytes for w in program.weights)
    cached = given if weights <= target.cached_weight_bytes else frozenset[str]()
    scene = _Scene(made, frozenset(given) - frozenset(cached), plan.places, target)
    return tuple(_in_body(plan.body, 1, scene))


def _in_body(body: Body, runs: int, scene: "_Scene") -> Iterator[StageFloor]:
    for node in body:
        match node:
            case Stage():
                yield scene.floor(node, runs)
            case Repeat():
                waits = {
                    "entering": (node.handoff, runs),
                    "again": (node.again, runs * node.extent),
                }
                for name, (handoff, times) in waits.items():
                    if handoff == "grid":
                        wait = scene.target.barrier_seconds
                        yield StageFloor(f"{name} {node.axis}", times, 0, 0, 0, 0.0, 0.0, wait)
                yield from _in_body(node.body, runs * node.extent, scene)
            case Choose(_, bodies):
                for inner in bodies:
                    yield from _in_body(inner, runs, scene)


class _Scene(msgspec.Struct, frozen=True):
    """made: maps each tensor to the statement that computes it. far: tensors read from device memory in each call."""

    made: Mapping[str, Compute | Scatter]
    far: frozenset[str]
    places: Places
    target: Target

    def floor(self, stage: Stage, runs: int) -> StageFloor:
        names = [n for step in stage.steps for n in step.computes]
        own = [self.made[n] for n in names if n in self.made]
        read = _read(own, frozenset(names))
        memory = sum(n for name, n in read.items() if name in self.far)
        cache = sum(read.values()) - memory + sum(self._written(s) for s in own)
        target = self.target
        products = [(product_kind(s), _points(s)) for s in own]
        computing = sum(2 * n / product_rate(k, target) for k, n in products if k)
        rest = [(s, n) for (k, n), s in zip(products, own, strict=True) if not k]
        other = sum(n * _cost(s) for s, n in rest)
        computing += other / (target.flops["fma"] / 2)
        waits = {"grid": target.barrier_seconds, "block": 0.0, "none": 0.0}
        return StageFloor(
            stage=stage.name,
            runs=runs,
            memory=memory,
            cache=cache,
            operations=sum(2 * n for k, n in products if k) + int(other),
            moving=memory / target.dram_bandwidth + cache / target.l2_bandwidth,
            computing=computing,
            waiting=waits[stage.handoff],
        )

    def _written(self, s: Compute | Scatter) -> int:
        """Bytes of a result that outlive the stage."""
        if all(isinstance(p, (*ON_CHIP, Register)) for p in self.places[s.out.name]):
            return 0
        return s.out.nbytes if isinstance(s, Compute) else _points(s) * s.out.dtype.itemsize


def _read(own: Sequence[Compute | Scatter], within: frozenset[str]) -> dict[str, int]:
    """Bytes of each tensor that the statements read and do not compute."""
    found: dict[str, int] = {}
    for s in own:
        extents = extents_of(s)
        for x in dict.fromkeys(loads_of(s)):
            if x.tensor.name not in within:
                nbytes = min(x.tensor.nbytes, footprint(x, extents))
                found[x.tensor.name] = max(found.get(x.tensor.name, 0), nbytes)
    return found


def _points(s: Compute | Scatter) -> int:
    return math.prod(extents_of(s).values())


def _cost(s: Compute | Scatter) -> float:
    """Operations per point."""
    return 1 + cost(s.body) if isinstance(s, Compute) else cost(s.value)
