"""Makes one aligned sequence a Loop, and maps the tensors that its surroundings read."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from monotile.analysis.align import (
    Alignment,
    Carried,
    Class,
    Local,
    Members,
    Same,
    Table,
)
from monotile.analysis.skeleton import Skeleton, visit
from monotile.ir.expr import Axis, Expr, Load, Tensor, add, idx, mul
from monotile.ir.program import Carry, Loop, Stack, Statement, defined
from monotile.transform.names import Names
from monotile.transform.replace import Moved, copy_of, element, renamed
from monotile.transform.roll.tables import Tables


@dataclass(frozen=True, slots=True)
class Merge:
    """Carries of the enclosing loop that become one: `param[g]` and `result[g]` are those of carry `carries[g]`."""

    carries: tuple[int, ...]
    param: Tensor
    result: Tensor


@dataclass(frozen=True, slots=True)
class Rolled:
    """statements: the Loop, then copies of results that are used as a whole. moved: locations for all later uses."""

    statements: tuple[Statement, ...]
    moved: dict[str, Moved]
    merges: tuple[Merge, ...]


@dataclass(frozen=True, slots=True)
class Uses:
    """Names of tensors that are read outside of the sequence: by any use, and by whole uses."""

    any: frozenset[str]
    whole: frozenset[str]


def make_loop(
    groups: Sequence[Sequence[Statement]],
    parts: Sequence[Sequence[Skeleton]],
    a: Alignment,
    uses: Uses,
    names: Names,
    tables: Tables,
) -> Rolled:
    """The Loop of the aligned `groups` with their skeletons `parts`."""
    definitions = [[t for p in group for t in p.definitions] for group in parts]
    axis = Axis(names.fresh("l"), a.count)
    origin = next((s.origin for s in groups[0] if s.origin), "")
    carries = _carries(a, definitions[0], names)
    merges = _merges(a, definitions[0], names)
    visitor = _Iteration(a, axis, carries, merges, names, tables)
    body = tuple(x for s in groups[0] for x in visitor.statement(s))

    visible = {t.name for s in groups[0] for t in defined(s)}
    stacked: list[Stack] = []
    moved: dict[str, Moved] = {}
    copies: list[Statement] = []
    for position, value in enumerate(definitions[0]):
        if value.name not in visible:
            continue
        outs = [group[position] for group in definitions]
        wanted = [g for g, t in enumerate(outs) if t.name in uses.any]
        carry = next((c for (at, _), c in carries.items() if at == position), None)
        merge = merges.get(position)
        if merge is None and carry is not None and wanted == [a.count - 1]:
            moved[outs[-1].name] = renamed(carry.out)
        elif merge is not None or wanted:
            shape = (a.count, *value.shape)
            stack = (
                Tensor(names.fresh(f"{value.name}_all"), shape, value.dtype)
                if merge is None
                else merge.result
            )
            stacked.append(Stack(value, stack))
            for g in wanted:
                moved[outs[g].name] = element(stack, g)
                if carry is not None and g == a.count - 1:
                    moved[outs[g].name] = Moved(stack, (idx(g),), carry.out)
                elif outs[g].name in uses.whole:
                    whole = Tensor(names.fresh(f"{value.name}_part"), value.shape, value.dtype)
                    copies.append(copy_of(whole, stack, (idx(g),), origin))
                    moved[outs[g].name] = Moved(stack, (idx(g),), whole)
    loop = Loop(axis, tuple(carries.values()), tuple(stacked), body, origin=origin)
    return Rolled((loop, *copies), moved, tuple(merges.values()))


def _carries(
    a: Alignment, definitions: Sequence[Tensor], names: Names
) -> dict[tuple[int, str], Carry]:
    """The carries, by position of the result and name of the init."""
    out: dict[tuple[int, str], Carry] = {}
    for c in a.slots:
        if isinstance(c, Carried) and (c.position, c.init.name) not in out:
            t = definitions[c.position]
            param, after = (
                Tensor(names.fresh(f"{t.name}_{suffix}"), t.shape, t.dtype)
                for suffix in ("before", "last")
            )
            out[c.position, c.init.name] = Carry(c.init, param, t, after)
    return out


def _merges(a: Alignment, definitions: Sequence[Tensor], names: Names) -> dict[int, Merge]:
    """The merges, by position of the result."""
    out: dict[int, Merge] = {}
    for c in a.slots:
        if isinstance(c, Members) and c.position not in out:
            t = definitions[c.position]
            param, result = (
                Tensor(names.fresh(f"{t.name}_{suffix}"), (a.count, *t.shape), t.dtype)
                for suffix in ("before", "after")
            )
            out[c.position] = Merge(c.carries, param, result)
    return out


class _Iteration:
    """Rewrites the statements of group 0 for any iteration. Visits slots and literals in order."""

    def __init__(
        self,
        a: Alignment,
        axis: Axis,
        carries: Mapping[tuple[int, str], Carry],
        merges: Mapping[int, Merge],
        names: Names,
        tables: Tables,
    ) -> None:
        self.slots: Iterator[Class] = iter(a.slots)
        self.constants = iter(a.constants)
        self.axis = axis
        self.carries = carries
        self.merges = merges
        self.names = names
        self.tables = tables
        self.copies: list[Statement] = []

    def statement(self, s: Statement) -> tuple[Statement, ...]:
        """`s` rewritten, preceded by copies of parts of tables that it uses as a whole."""
        self.copies = []
        new = visit(s, self)
        return (*self.copies, new)

    def token(self, *parts: Hashable) -> None:
        pass

    def constant(self, value: int) -> Expr:
        p = next(self.constants)
        return add(mul(self.axis, idx(p.step)), idx(p.start))

    def load(self, tensor: Tensor, index: tuple[Expr, ...]) -> Expr:
        source, prefix = self._source(tensor)
        return Load(source, (*prefix, *index))

    def use(self, tensor: Tensor) -> Tensor:
        source, prefix = self._source(tensor)
        if not prefix:
            return source
        whole = Tensor(self.names.fresh(f"{tensor.name}_part"), tensor.shape, tensor.dtype)
        self.copies.append(copy_of(whole, source, prefix))
        return whole

    def define(self, tensor: Tensor) -> Tensor:
        return tensor

    def _source(self, tensor: Tensor) -> tuple[Tensor, tuple[Expr, ...]]:
        match next(self.slots):
            case Same(same):
                return same, ()
            case Local():
                return tensor, ()
            case Carried(position, init):
                return self.carries[position, init.name].param, ()
            case Table(tensors):
                return self.tables.table(tensors), (self.axis,)
            case Members(_, position):
                return self.merges[position].param, (self.axis,)
