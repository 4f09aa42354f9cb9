"""Horizontal fusion: sibling statements that do the same work on the same data with different weights become one Compute.

The queries, keys and values of an attention, the experts, gates and towers of a mixture: k products of one operand with k weights become
one product with a leading axis of extent k over a table of the weights' pointers, without copies. So do look-ups in k tables by the same
indices. Equal statements that follow each of them (biases, activations, second products) are fused too. Siblings are fused only if they
have equal depth (longest chain of statements to them), so that none waits for more than before. (Rammer, Retiarii: merging models that
run side by side.)
"""

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import msgspec

from monotile.analysis.dependence import loads_of
from monotile.analysis.skeleton import Skeleton, skeleton, visit
from monotile.ir.expr import Axis, Expr, Load, Tensor, add, idx, loads, mul, substitute
from monotile.ir.program import Branch, Compute, Loop, Program, Scatter, Statement, defined
from monotile.transform.names import Names
from monotile.transform.replace import Moved, element, renamed, replace_all
from monotile.transform.roll.order import depths, topological
from monotile.transform.roll.tables import Tables


def fuse_horizontally(program: Program) -> Program:
    """`program` with siblings fused in every statement list; the same object if there are none."""
    names = Names(program)
    fuser = _Fuser(names, Tables(program, names))
    body = fuser.fuse_list(program.body, program.outputs)
    if body == program.body:
        return program
    weights = fuser.tables.used_in(body, program.outputs)
    return msgspec.structs.replace(program, weights=weights, body=body)


@dataclass(frozen=True, slots=True)
class _Place:
    """A sibling that became element `index` of `fused`."""

    fused: Tensor
    index: int


@dataclass(frozen=True, slots=True)
class _Sibling:
    compute: Compute
    skeleton: Skeleton
    slots: tuple[Tensor | _Place, ...]


@dataclass(frozen=True, slots=True)
class _Indexed:
    """Sibling g reads `tensor` at leading index start + step * g."""

    tensor: Tensor
    start: int
    step: int


_Slot = Tensor | _Indexed  # the same for all siblings, or one per sibling


class _Fuser:
    def __init__(self, names: Names, tables: Tables) -> None:
        self.names = names
        self.tables = tables

    def fuse_list(
        self, body: tuple[Statement, ...], results: Sequence[Tensor]
    ) -> tuple[Statement, ...]:
        """`body` with its siblings fused. results: tensors used after it, which are kept."""
        body = tuple(self._inside(s) for s in body)
        skeletons = [skeleton(s) for s in body]
        fixed = {t.name for t in results}
        for k in skeletons:
            fixed |= {t.name for t, load in zip(k.uses, k.loads, strict=True) if not load}
        stored = _stored(body)

        levels: dict[int, list[int]] = {}
        for k, depth in enumerate(depths(body)):
            levels.setdefault(depth, []).append(k)
        places: dict[str, _Place] = {}
        fused_at: dict[int, Compute] = {}  # by position of the first sibling
        gone: set[int] = set()
        moved: dict[str, Moved] = {}
        for depth in sorted(levels):
            groups: dict[Hashable, list[int]] = {}
            for k in levels[depth]:
                s = body[k]
                if isinstance(s, Compute) and s.out.name not in fixed:
                    key = self._key(skeletons[k], places)
                    apart = self._is_statistic(s, skeletons[k], places) and s.out.name in stored
                    groups.setdefault((key, apart), []).append(k)
            for group in groups.values():
                if len(group) < 2:
                    continue
                siblings = [self._sibling(body[k], skeletons[k], places) for k in group]
                for first, count, slots, steps in self._runs(siblings):
                    members = group[first : first + count]
                    one = siblings[first]
                    if not any(isinstance(x, _Indexed) for x in slots) and not any(steps):
                        for k in members[1:]:
                            moved[_out(body[k]).name] = renamed(one.compute.out)
                        gone.update(members[1:])
                        continue
                    new = self._fused(one, count, slots, steps)
                    fused_at[members[0]] = new
                    gone.update(members)
                    for g, k in enumerate(members):
                        places[_out(body[k]).name] = _Place(new.out, g)
                        moved[_out(body[k]).name] = element(new.out, g)
        if not moved:
            return body
        kept = [fused_at.get(k, s) for k, s in enumerate(body) if k in fused_at or k not in gone]
        return topological(replace_all(kept, moved))

    def _inside(self, s: Statement) -> Statement:
        match s:
            case Loop():
                results = [c.result for c in s.carried] + [k.value for k in s.stacked]
                if s.predicate is not None:
                    results.append(s.predicate)
                body = self.fuse_list(s.body, results)
                if body == s.body:
                    return s
                return Loop(s.axis, s.carried, s.stacked, body, s.count, s.predicate, s.origin)
            case Branch():
                then = self.fuse_list(s.then, [o.then for o in s.outs])
                otherwise = self.fuse_list(s.otherwise, [o.otherwise for o in s.outs])
                if then == s.then and otherwise == s.otherwise:
                    return s
                return Branch(s.predicate, then, otherwise, s.outs, s.origin)
            case _:
                return s

    def _key(self, k: Skeleton, places: dict[str, _Place]) -> Hashable:
        """Equal for statements that may be siblings."""
        weights = self.tables.weights
        slots: list[Hashable] = []
        for t in k.uses:
            place = places.get(t.name)
            if place is not None:
                slots.append(("part", place.fused.name))
            else:
                slots.append("weight" if t.name in weights else t.name)
        return (k.key, tuple(slots))

    def _is_statistic(self, s: Compute, k: Skeleton, places: dict[str, _Place]) -> bool:
        """Whether `s` reduces what siblings have computed, and nothing else."""
        return s.combiner is not None and all(t.name in places for t in k.uses)

    def _sibling(self, s: Statement, k: Skeleton, places: dict[str, _Place]) -> _Sibling:
        assert isinstance(s, Compute)
        return _Sibling(s, k, tuple(places.get(t.name, t) for t in k.uses))

    def _runs(self, siblings: Sequence[_Sibling]) -> list[tuple[int, int, list[_Slot], list[int]]]:
        """Runs of neighbouring siblings that can and should become one Compute: (first, count, slots, steps of the
        literals)."""
        found: list[tuple[int, int, list[_Slot], list[int]]] = []
        first = 0
        while first < len(siblings) - 1:
            count = 2
            while first + count <= len(siblings) and _progress(siblings[first : first + count]):
                count += 1
            count -= 1
            if count > 1:
                run = siblings[first : first + count]
                slots = [self._slot([s.slots[j] for s in run]) for j in range(len(run[0].slots))]
                constants = [s.skeleton.constants for s in run[:2]]
                steps = [b - a for a, b in zip(*constants, strict=True)]
                alike = not any(isinstance(x, _Indexed) for x in slots) and not any(steps)
                if alike or self._pays(run[0].compute, slots):
                    found.append((first, count, slots, steps))
            first += count
        return found

    def _slot(self, parts: Sequence[Tensor | _Place]) -> _Slot:
        places = [p for p in parts if isinstance(p, _Place)]
        if places:
            start, step = places[0].index, places[1].index - places[0].index
            return _Indexed(places[0].fused, start, step)
        tensors = [t for t in parts if isinstance(t, Tensor)]
        if all(t == tensors[0] for t in tensors):
            return tensors[0]
        return _Indexed(self.tables.table(tensors), 0, 1)

    def _pays(self, s: Compute, slots: Sequence[_Slot]) -> bool:
        """Whether fusing pays: a reduction of an operand that is shared or comes from siblings, a look-up of tables by shared indices,
        or a follower of siblings."""
        weights = self.tables.weights
        follows = any(isinstance(x, _Indexed) and x.tensor.name not in weights for x in slots)
        shares = any(isinstance(x, Tensor) and x.name not in weights for x in slots)
        looks_up = any(x.tensor.name in weights and any(map(loads, x.index)) for x in loads(s.body))
        return follows or (shares and (s.combiner is not None or looks_up))

    def _fused(
        self, first: _Sibling, count: int, slots: Sequence[_Slot], steps: Sequence[int]
    ) -> Compute:
        s = first.compute
        g = Axis("i0", count)
        axes = tuple(Axis(f"i{k + 1}", a.extent) for k, a in enumerate(s.axes))
        renaming: dict[str, Expr] = {a.name: b for a, b in zip(s.axes, axes, strict=True)}
        out = Tensor(self.names.fresh(f"{s.out.name}_all"), (count, *s.out.shape), s.out.dtype)
        body = substitute(s.body, renaming)
        wide = Compute(out, axes, s.reduce, s.combiner, body, s.origin)
        new = visit(wide, _Widen(g, slots, steps))
        assert isinstance(new, Compute)
        return Compute(out, (g, *axes), s.reduce, s.combiner, new.body, s.origin)


class _Widen:
    """Rewrites the first sibling as all of them. Visits slots and literals in order."""

    def __init__(self, g: Axis, slots: Sequence[_Slot], steps: Sequence[int]) -> None:
        self.g = g
        self.slots = iter(slots)
        self.steps = iter(steps)

    def token(self, *parts: Hashable) -> None:
        pass

    def constant(self, value: int) -> Expr:
        return add(mul(self.g, idx(next(self.steps))), idx(value))

    def load(self, tensor: Tensor, index: tuple[Expr, ...]) -> Expr:
        match next(self.slots):
            case _Indexed(source, start, step):
                return Load(source, (add(mul(self.g, idx(step)), idx(start)), *index))
            case Tensor() as same:
                return Load(same, index)

    def use(self, tensor: Tensor) -> Tensor:
        raise AssertionError(f"{tensor.name}: a Compute only has Loads")

    def define(self, tensor: Tensor) -> Tensor:
        return tensor


def _stored(body: Sequence[Statement]) -> set[str]:
    """The tensors from which Scatters' values are computed element by element. A row that is written to a state belongs into the stage that
    computes it: the statistics of a key's heads are not fused with those of the queries, whose rows are no tasks of that stage."""
    found = set[str]()
    for s in reversed(body):
        if isinstance(s, Scatter) or (
            isinstance(s, Compute) and s.combiner is None and s.out.name in found
        ):
            found |= {x.tensor.name for x in loads_of(s)}
    return found


def _out(s: Statement) -> Tensor:
    (t,) = defined(s)
    return t


def _progress(run: Sequence[_Sibling]) -> bool:
    """Whether literals and indices progress by equal steps from sibling to sibling."""
    numbers = [
        (*s.skeleton.constants, *(p.index for p in s.slots if isinstance(p, _Place))) for s in run
    ]
    for column in zip(*numbers, strict=True):
        step = column[1] - column[0]
        if any(b - a != step for a, b in itertools.pairwise(column)):
            return False
    return True
