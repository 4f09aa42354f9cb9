"""The minimum work of any implementation of a Program: bytes to move once, products to sum."""

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from monotile.analysis.contraction import contraction
from monotile.analysis.dependence import loads_of
from monotile.analysis.reuse import footprint
from monotile.ir.dtype import DType
from monotile.ir.program import Compute, Loop, Program, Scatter, Statement
from monotile.targets.target import Target

PARTS = 3  # products on tensor cores for one of float32


class Work(msgspec.Struct, frozen=True):
    """The work of one call. moved: bytes of the inputs and weights that are read (of an embedding only its rows) and of the
    outputs, each once. operations: of products, by the instruction whose rate bounds them ("mma8", "mma16", "float32")."""

    moved: int
    operations: dict[str, int]

    def seconds(self, target: Target) -> float:
        """Lower bound of the time if all data comes from the target's memory."""
        arithmetic = sum(n / product_rate(k, target) for k, n in self.operations.items())
        return max(self.moved / target.dram_bandwidth, arithmetic)


def product_kind(s: Statement) -> str:
    """The instruction that bounds a sum of products: "mma8", "mma16" or "float32"; "" for anything else."""
    product = contraction(s) if isinstance(s, Compute) else None
    if product is None:
        return ""
    size = max(product.left.dtype.itemsize, product.right.dtype.itemsize)
    return f"mma{8 * size}" if size < DType.F32.itemsize else "float32"


def product_rate(kind: str, target: Target) -> float:
    """Operations a second of products of that kind; of float32, on tensor cores in parts where that is faster."""
    scalar = max(target.flops["fma"], target.flops.get("mma32", 0) / PARTS)
    return target.flops.get(kind, scalar)


def work(program: Program) -> Work:
    """The Work of a Program as captured; transforms may recompute or compute more. Loops that may end early count in full,
    Branches not at all."""
    given = {t.name: t for t in (*program.inputs, *(w.tensor for w in program.weights))}
    read: dict[str, int] = {}
    operations: dict[str, int] = {}
    for s, extents in _placed(program.body, {}):
        reduce = s.reduce if isinstance(s, Compute) else ()
        extents = {**extents, **{a.name: a.extent for a in (*s.axes, *reduce)}}
        for x in dict.fromkeys(loads_of(s)):
            if x.tensor.name in given:
                read[x.tensor.name] = read.get(x.tensor.name, 0) + footprint(x, extents)
        if kind := product_kind(s):
            operations[kind] = operations.get(kind, 0) + 2 * math.prod(extents.values())
    inputs = sum(min(n, given[name].nbytes) for name, n in read.items())
    return Work(inputs + sum(t.nbytes for t in program.results), operations)


def _placed(
    body: Sequence[Statement], extents: Mapping[str, int]
) -> Iterator[tuple[Compute | Scatter, Mapping[str, int]]]:
    """Every Compute and Scatter with the extents of its enclosing loops."""
    for s in body:
        match s:
            case Loop():
                yield from _placed(s.body, {**extents, s.axis.name: s.axis.extent})
            case Compute() | Scatter():
                yield s, extents
            case _:
                yield from ()  # a Branch: only one side runs
