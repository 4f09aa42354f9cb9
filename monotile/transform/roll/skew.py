"""Loop skewing: a nest of two loops runs as a wavefront, all iterations of a diagonal at once.

Iteration (a, b) depends on (a, b - 1) and (a - 1, b) only (`analysis.nest`), so those with a + b = w are independent. The nest becomes
one loop over w, whose Computes have an additional axis: that of one of the two loops, p; the other is q = w - p. A value passed on by an
iteration is carried as one tensor with a row for each p, which keeps its value where q is outside of its loop. If p - 1 is read, an
additional row 0 holds the initial value of the nest for the next q. (Lamport's hyperplane method; cuDNN's recurrent layers.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from monotile.analysis.nest import Edge, Nest, nest
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    Select,
    Tensor,
    add,
    axes_of,
    binary,
    cast,
    const,
    idx,
    loads,
    map_loads,
    sub,
    substitute,
    walk,
)
from monotile.ir.program import Carry, Compute, Loop, Program, Stack, Statement, compute, used
from monotile.targets.target import Target
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, with_body

INLINE_LIMIT = (
    4096  # size limit up to which pointwise steps of an iteration are inlined into one expression
)


def skew(program: Program, target: Target | None = None) -> Program:
    """`program` with its nests as wavefronts; the same object if there are none. A wave reads the weights of all its iterations: where
    `target` cannot keep them in cache from one wave to the next, the nest is unchanged."""
    names = Names(program)
    weights = frozenset(w.tensor.name for w in program.weights)
    changing = program.changing  # a wave would read it once for all its iterations

    def go(body: Body) -> Body:
        out: list[Statement] = []
        for s in body:
            found = (
                nest(s)
                if isinstance(s, Loop) and not changing.intersection(t.name for t in used(s))
                else None
            )
            if (
                found is not None
                and target is not None
                and _weight_bytes(found, weights) > _kept(target)
            ):
                found = None
            wide = found is not None and _outer_is_wide(found, weights)
            states = None if found is None else _states(found, wide, names)
            if found is None or states is None:
                out.append(map_bodies(s, go))
            else:
                out += _Wave(found, wide, states, names).statements()
        return tuple(out)

    return with_body(program, go(program.body))


def _weight_bytes(n: Nest, weights: frozenset[str]) -> int:
    read = {x.tensor for s in n.body for x in loads(s.body) if x.tensor.name in weights}
    return sum(t.nbytes for t in read)


def _kept(target: Target) -> int:
    """Bytes that all workers together can read again at full speed: the last-level cache, or their own caches, where they rely on these."""
    return target.l2_bytes if target.has.scratchpad else target.workers * target.shared_bytes


@dataclass(frozen=True, slots=True)
class _State:
    """One value that iterations pass on, carried with one row per p.

    kept: read at the same p. shifted: read at p - 1; the row of p is then p + 1, and row 0 is the initial value.
    """

    value: Tensor
    kept: Edge | None
    shifted: Edge | None
    carry: Carry

    def row(self, p: Expr) -> Expr:
        """The row of p."""
        return add(p, idx(1)) if self.shifted else p

    def place(self, row: Expr) -> Expr:
        """The p of `row`."""
        return sub(row, idx(1)) if self.shifted else row


def _outer_is_wide(n: Nest, weights: frozenset[str]) -> bool:
    """Whether the outer loop's axis is the parallel one.

    The shorter one, because every wave computes all its rows; but preferably the one that selects the weights, unless it is
    more than twice as long: a row then reads the same weights in every wave, and they can be pinned.
    """
    a, b = n.outer.axis, n.inner.axis
    picks = {
        axis
        for s in n.body
        for x in loads(s.body)
        if x.tensor.name in weights
        for i in x.index
        for axis in axes_of(i)
    }
    if (a in picks) != (b in picks):
        wide, long = (a, b) if a in picks else (b, a)
        if wide.extent <= 2 * long.extent:
            return wide is a
    return a.extent <= b.extent


def _states(n: Nest, outer_is_wide: bool, names: Names) -> dict[str, _State] | None:
    """The states by the value's name; None if a value has several initial values."""
    kept_edges, shifted_edges = n.inner_edges, n.outer_edges
    if not outer_is_wide:
        kept_edges, shifted_edges = shifted_edges, kept_edges
    kept = {e.value.name: e for e in kept_edges}
    shifted = {e.value.name: e for e in shifted_edges}
    if len(kept) < len(kept_edges) or len(shifted) < len(shifted_edges):
        return None
    wide = (n.outer if outer_is_wide else n.inner).axis.extent
    out: dict[str, _State] = {}
    for e in (*kept_edges, *shifted_edges):
        name = e.value.name
        if name not in out:
            shape = (wide + (name in shifted), *e.value.shape)
            init, param, result, after = (
                Tensor(names.fresh(f"{name}_{part}"), shape, e.value.dtype)
                for part in ("start", "rows", "next", "end")
            )
            carry = Carry(init, param, result, after)
            out[name] = _State(e.value, kept.get(name), shifted.get(name), carry)
    return out


class _Wave:
    """The wavefront of one nest. In expressions the parallel loop's own axis stands for p until
    the end, and the long loop's for q."""

    def __init__(
        self, n: Nest, outer_is_wide: bool, states: dict[str, _State], names: Names
    ) -> None:
        a, b = n.outer.axis, n.inner.axis
        self.nest = n
        self.states = states
        self.wide, self.long = (a, b) if outer_is_wide else (b, a)
        self.w = Axis(names.fresh("wave"), a.extent + b.extent - 1)
        self.names = names
        self.defined = {s.out.name: s for s in n.body}
        self.widened = {
            s.out.name: Tensor(
                names.fresh(f"{s.out.name}_wave"), (self.wide.extent, *s.out.shape), s.out.dtype
            )
            for s in n.body
        }
        self.reads: dict[str, tuple[_State, bool, int]] = {}  # state, shifted, indices to drop
        for edges, drop in ((n.inner_edges, 0), (n.outer_edges, 1)):
            for e in edges:
                state = states[e.value.name]
                self.reads[e.param.name] = (state, e is state.shifted, drop)

    def statements(self) -> list[Statement]:
        """The statements that replace the nest."""
        origin = self.nest.outer.origin or self.nest.inner.origin
        updates = [self._update(s, origin) for s in self.states.values()]
        results, stacks = self._results(origin)
        needed = {k.value.name for k in stacks}
        needed |= {x.tensor.name for s in updates for x in loads(s.body)}
        body: list[Statement] = list(updates)
        for s in reversed(self.nest.body):
            if self.widened[s.out.name].name in needed:
                wide = self._widen(s)
                needed |= {x.tensor.name for x in loads(wide.body)}
                body.insert(0, wide)
        carried = tuple(s.carry for s in self.states.values())
        loop = Loop(self.w, carried, stacks, tuple(body), origin=origin)
        return [*(self._start(s, origin) for s in self.states.values()), loop, *results]

    # Statements of the wave.

    def _widen(self, s: Compute) -> Compute:
        """`s` for every p."""
        axes = tuple(Axis(f"i{k}", n) for k, n in enumerate((self.wide.extent, *s.out.shape)))
        body = self._placed(self._at_neighbours(s.body), s.axes, axes[1:], axes[0])
        return Compute(self.widened[s.out.name], axes, s.reduce, s.combiner, body, s.origin)

    def _update(self, s: _State, origin: str) -> Compute:
        """The rows of `s` after a wave: new if q is in its loop, else unchanged."""

        def body(row: Expr, *i: Expr) -> Expr:
            p = s.place(row)
            q = sub(self.w, p)
            active = Binary("and", Binary("le", p, self.w), Binary("lt", q, idx(self.long.extent)))
            new = self._placed(self._whole(s.value), self._axes(s.value), i, p)
            e: Expr = Select(active, new, Load(s.carry.param, (row, *i)))
            if s.shifted:
                following = binary("min", add(self.w, idx(1)), idx(self.long.extent - 1))
                e = Select(Binary("lt", row, idx(1)), s.shifted.start.at(following, i), e)
            return e

        return compute(s.carry.result, body, origin=origin)

    def _start(self, s: _State, origin: str) -> Compute:
        """The rows of `s` before the first wave."""

        def body(row: Expr, *i: Expr) -> Expr:
            e: Expr = const(0, s.value.dtype)
            if s.kept:
                e = s.kept.start.at(s.place(row), i)
            if s.shifted:
                e = Select(Binary("lt", row, idx(1)), s.shifted.start.at(idx(0), i), e)
            return e

        return compute(s.carry.init, body, origin=origin)

    # Expressions of the nest's body, for the wave.

    def _axes(self, t: Tensor) -> tuple[Axis, ...]:
        return self.defined[t.name].axes

    def _at_neighbours(self, e: Expr) -> Expr:
        """`e` with loads of carried values and of the iteration's values replaced by loads of rows."""

        def read(x: Load) -> Expr:
            if x.tensor.name in self.reads:
                state, shifted, drop = self.reads[x.tensor.name]
                row = self.wide if shifted else state.row(self.wide)
                return Load(state.carry.param, (row, *x.index[drop:]))
            if x.tensor.name in self.widened:
                return Load(self.widened[x.tensor.name], (self.wide, *x.index))
            return x

        return map_loads(e, read)

    def _whole(self, t: Tensor) -> Expr:
        """The value of `t` over its own axes, with its pointwise steps inlined into one expression."""
        s = self.defined[t.name]
        if s.combiner is None:
            whole = self._inlined(s)
            if sum(1 for _ in walk(whole)) <= INLINE_LIMIT:
                return self._at_neighbours(whole)
        return Load(self.widened[t.name], (self.wide, *s.axes))

    def _inlined(self, s: Compute) -> Expr:
        def read(x: Load) -> Expr:
            source = self.defined.get(x.tensor.name)
            if source is None or source.combiner is not None:
                return x
            names: dict[str, Expr] = {a.name: i for a, i in zip(source.axes, x.index, strict=True)}
            return substitute(self._inlined(source), names)

        return cast(map_loads(s.body, read), s.out.dtype)

    def _placed(self, e: Expr, axes: Sequence[Axis], index: Sequence[Expr], p: Expr) -> Expr:
        """`e` with `axes` at `index`, and both loops' axes at p in this wave."""
        # Clamped: rows whose q is outside of its loop are computed and dropped.
        q = binary("min", binary("max", sub(self.w, p), idx(0)), idx(self.long.extent - 1))
        names: dict[str, Expr] = {a.name: i for a, i in zip(axes, index, strict=True)}
        return substitute(e, names | {self.wide.name: p, self.long.name: q})

    # Results of the nest.

    def _results(self, origin: str) -> tuple[list[Statement], tuple[Stack, ...]]:
        """The nest's results by their old names, and the stacks of the wave's loop for them."""
        n = self.nest
        outer, inner = n.outer.axis, n.inner.axis
        stacks: dict[str, Stack] = {}
        results: list[Statement] = []

        def at(value: Tensor, a: Expr, b: Expr, i: tuple[Expr, ...]) -> Expr:
            """`value` of iteration (a, b)."""
            p, q = (a, b) if self.wide == outer else (b, a)
            state = self.states.get(value.name)
            if state and q == idx(self.long.extent - 1):
                return Load(state.carry.out, (state.row(p), *i))
            if value.name not in stacks:
                source = state.carry.result if state else self.widened[value.name]
                shape = (self.w.extent, *source.shape)
                out = Tensor(self.names.fresh(f"{value.name}_waves"), shape, source.dtype)
                stacks[value.name] = Stack(source, out)
            row = state.row(p) if state else p
            return Load(stacks[value.name].out, (add(a, b), row, *i))

        last_a, last_b = idx(outer.extent - 1), idx(inner.extent - 1)
        finals = {c.out.name: c.result for c in n.inner.carried}
        sequences = {k.out.name: k.value for k in n.inner.stacked}

        for c, e in zip(n.outer.carried, n.outer_edges, strict=True):
            results.append(
                compute(c.out, lambda b, *i, v=e.value: at(v, last_a, b, i), origin=origin)
            )
        for k in n.outer.stacked:
            if k.value.name in finals:
                v = finals[k.value.name]
                results.append(
                    compute(k.out, lambda a, *i, v=v: at(v, a, last_b, i), origin=origin)
                )
            else:
                v = sequences[k.value.name]
                results.append(compute(k.out, lambda a, b, *i, v=v: at(v, a, b, i), origin=origin))
        return results, tuple(stacks.values())
