"""Writes the parts of a concatenation along the last dimension straight into it: they are columns of one matrix.

A part is stored with the row stride of the whole. Readers of the concatenation read the matrix with one load, not with a choice between
loads (`analysis/strips.py`). A tensor may be a part of several concatenations, as in a DenseNet, whose layers read all layers before.
These share one matrix if the tensor has the same columns in all of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from monotile.analysis.strips import parts
from monotile.analysis.uses import references
from monotile.ir.expr import Expr, Select, Tensor, children
from monotile.ir.program import Compute, Program
from monotile.targets.target import Target


@dataclass(frozen=True, slots=True)
class Columns:
    """A tensor's columns of a matrix, which is named after its first part: columns from `first` on, with row stride `pitch`."""

    matrix: str
    first: int
    pitch: int


def strips(program: Program, target: Target) -> dict[str, Columns]:
    """Maps each tensor that is a part of concatenations to its columns."""
    able = _able(program, target)
    families: list[dict[str, int]] = []
    for s in program.body:
        if isinstance(s, Compute):
            for found in concatenations(s.body):
                own = {t.name: at for t, at in found.items() if t.name in able}
                if len(own) > 1:
                    families = _with(families, own)
    out: dict[str, Columns] = {}
    for family in families:
        begin = min(family.values())
        ordered = sorted(family, key=lambda n: family[n])
        ends = [family[n] + able[n].shape[-1] for n in ordered]
        if [family[n] for n in ordered] == [begin, *ends[:-1]]:  # no gaps
            pitch = ends[-1] - begin
            out |= {n: Columns(ordered[0], family[n] - begin, pitch) for n in ordered}
    return out


def concatenations(e: Expr) -> Iterator[dict[Tensor, int]]:
    """The parts of each concatenation that `e` reads, and their first columns."""
    found = parts(e) if isinstance(e, Select) else None
    if found is not None:
        yield found
    else:
        for x in children(e):
            yield from concatenations(x)


def _able(program: Program, target: Target) -> Mapping[str, Tensor]:
    """Whether it may be columns of a matrix: a statement computes it, readers load it, and each row is whole vectors."""
    whole, _ = references(program.body)
    whole.update(t.name for t in program.outputs)
    made = (s.out for s in program.body if isinstance(s, Compute))
    return {
        t.name: t
        for t in made
        if t.shape
        and not whole[t.name]
        and t.shape[-1] * t.dtype.itemsize % target.vector_bytes == 0
    }


def _with(families: list[dict[str, int]], more: dict[str, int]) -> list[dict[str, int]]:
    """`families`, of tensors at their columns, with another one. It is joined to those with which it shares tensors, if all their
    columns agree."""
    joined = dict(more)
    near = [f for f in families if f.keys() & more.keys()]
    for f in near:
        (shift, *others) = {more[n] - f[n] for n in f.keys() & more.keys()}
        if others:
            return families
        joined |= {n: at + shift for n, at in f.items()}
    return [f for f in families if f not in near] + [joined]
