"""Binds the symbolic sizes of a Program to scalars of the call.

While a Program is built, an extent or a literal may be a `Size`. Here extents become plain ints, the upper bounds, and literals become Loads of scalar
inputs. Elements beyond a size are undefined but finite. Operations that would use them are masked: reductions, Scatters, inputs (whose memory ends
there), and indices, which are checked at run time.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec
import sympy

from monotile.analysis.dead import Given, Value, combined, converted, left_out, value_where
from monotile.errors import CaptureError
from monotile.frontends.builder import Names, identity
from monotile.frontends.torch.lower.reshape import reshape_index
from monotile.frontends.torch.lower.scalar import masked
from monotile.frontends.torch.sizes.data_sizes import computed, computed_number, is_data_dependent
from monotile.frontends.torch.sizes.poles import Poles
from monotile.frontends.torch.sizes.positions import Positions
from monotile.frontends.torch.sizes.ranges import NO_RANGES, Ranges
from monotile.frontends.torch.sizes.size import Size, text_of
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    Load,
    SizeTensor,
    Symbolic,
    SymbolicNumber,
    Tensor,
    axes_of,
    binary,
    cast,
    const,
    idx,
    loads,
    rebuild,
    substitute,
    walk,
)
from monotile.ir.program import (
    Branch,
    BranchOut,
    Carry,
    Compute,
    Loop,
    Program,
    Scatter,
    Stack,
    Statement,
    compute,
)

Body = Sequence[Statement]


class Bound(msgspec.Struct, frozen=True):
    """program: with sizes as further inputs, after its own. scalars: these inputs, each with a Python expression over the model's dimensions."""

    program: Program
    scalars: Mapping[str, str]


def bind(
    program: Program,
    names: Names,
    ranges: Ranges = NO_RANGES,
    sizes: Mapping[str, Tensor] = MappingProxyType({}),
) -> Bound:
    """`program` with bound sizes; its inputs and results are row-major in the sizes of the call. ranges: of the symbols of the call. sizes: the scalars of
    data-dependent symbols. Raises CaptureError for a state whose size is dynamic."""
    return _Binder(names, ranges, sizes).program(program)


def is_dense(shape: Sequence[int]) -> bool:
    """Whether the elements beyond a size are all at the end: then memory of the exact size is a prefix of memory of the upper bound."""
    sized = [k for k, n in enumerate(shape) if isinstance(n, Size)]
    return not sized or all(n == 1 for n in shape[: sized[-1]])


class _Binder:
    """dead: the known values of all elements beyond a size, by tensor and dimension."""

    def __init__(self, names: Names, ranges: Ranges, sizes: Mapping[str, Tensor]) -> None:
        self.names = names
        self.positions, self.poles = Positions(), Poles()
        self.ranges, self.sizes = ranges, sizes
        self.scalars: dict[str, SizeTensor] = {}
        self.dead: dict[str, dict[int, Value]] = {}
        self.inputs: dict[Tensor, Tensor] = {}

    def program(self, p: Program) -> Bound:
        states = set(p.states)
        new_inputs: list[Tensor] = []
        body: list[Statement] = []
        for t in p.inputs:
            sized = any(isinstance(n, Size) for n in t.shape)
            if sized and t.name in states:
                raise CaptureError(f"{t.name} is updated in place: fix its size, or update a clone")
            new_inputs.append(self._input(t, body) if sized else t)
        body += self.body(p.body)
        outputs = [self._output(t, body) for t in p.outputs]
        partial = [self._partial(t) for t in p.outputs]
        scalars = {t.name: text for text, t in self.scalars.items()}
        program = msgspec.structs.replace(
            p, inputs=(*new_inputs, *self.scalars.values()), body=tuple(body),
            outputs=tuple(outputs), partial=tuple(partial) if any(map(any, partial)) else (),
        )  # fmt: skip
        return Bound(program, scalars)

    # Sizes.

    def size(self, n: Size) -> Expr:
        """Its value in the call."""
        if not is_data_dependent(n, self.sizes):
            if n.low >= 0:
                return self.scalar(n)
            own = Size(n.expr - n.low, 0, int(n) - n.low)
            return Binary("add", self.scalar(own), Const(n.low, DType.I64))
        return computed(n.expr, self._symbol)

    def _symbol(self, name: str) -> Expr:
        if name in self.sizes:
            return Load(self.sizes[name], ())
        low, high = next((low, high) for n, low, high in self.ranges.of if n == name)
        return self.scalar(Size(sympy.Symbol(name), low, high))

    def scalar(self, n: Size) -> Load:
        text = text_of(n)  # of an input of the call
        if text not in self.scalars:
            name = self.names.unique(_word(n))
            self.scalars[text] = SizeTensor(name, (), DType.I64, n.low, int(n))
        return Load(self.scalars[text], ())

    def number(self, text: str) -> Expr:
        """A float64 computed from sizes."""
        if (found := computed_number(text, self.sizes, self._symbol)) is not None:
            return found
        if text not in self.scalars:
            self.scalars[text] = SizeTensor(self.names.unique("number"), (), DType.F64)
        return Load(self.scalars[text], ())

    def inside(self, axes: Sequence[Axis]) -> list[Expr]:
        """Tests that `axes` are within their sizes."""
        return [
            Binary("lt", self.expr(a), self.size(a.extent))
            for a in axes
            if isinstance(a.extent, Size)
        ]

    # Parts of statements.

    def tensor(self, t: Tensor) -> Tensor:
        extents = tuple(map(int, t.shape))
        return self.inputs.get(t) or msgspec.structs.replace(t, shape=extents)

    def expr(self, e: Expr) -> Expr:
        known: dict[int, Expr] = {}

        def go(x: Expr) -> Expr:
            if id(x) not in known:
                known[id(x)] = made(x)
            return known[id(x)]

        def made(x: Expr) -> Expr:
            match x:
                case Const(Size() as n, dtype):
                    return cast(self.size(n), dtype)
                case Const(value, dtype) if isinstance(value, SymbolicNumber):
                    return cast(self.number(value.text), dtype)
                case Axis(name, extent):
                    return Axis(name, int(extent))
                case Load(t, index):
                    at = map(self._index, index, map(go, index), t.shape)
                    return Load(self.tensor(t), tuple(at))
                case _:
                    return rebuild(x, go)

        return go(e)

    def _index(self, i: Expr, made: Expr, n: int) -> Expr:
        """made: `i` without sizes."""
        if not any(isinstance(a.extent, Size) for a in axes_of(i)):
            return made
        return self.positions.index(made, int(n)) or made

    def axes(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(Axis(a.name, int(a.extent)) for a in axes)

    # Statements.

    def body(self, body: Body) -> Iterator[Statement]:
        for s in body:
            match s:
                case Compute():
                    yield self._compute(s)
                case Scatter():
                    yield self._scatter(s)
                case Loop():
                    yield self._loop(s)
                case Branch():
                    yield self._branch(s)

    def _compute(self, c: Compute) -> Compute:
        reduce = [a for a in c.reduce if not self._harmless(c, a)]
        own = [a for a in c.axes if isinstance(a.extent, Size) and self._gathers(c, a)]
        tests = self.inside([*own, *reduce])
        if c.combiner in ("argmax", "argmin") and any(
            isinstance(a.extent, Size) for a in c.reduce[1:]
        ):
            raise CaptureError(
                f"{c.combiner} over several dimensions of which one is known in the call only"
                + (f", at {c.origin}" if c.origin else "")
            )
        body = self.expr(c.body)
        combiner = (c.combiner or "sum").removeprefix("arg")
        nothing = const(identity(combiner, body.dtype), body.dtype)
        for p, a in enumerate(c.axes):
            value = self._beyond(c.body, a)
            if a in own:
                value = 0 if c.combiner is None else None
            elif value is not None and c.combiner is not None:
                value = combined(c.combiner, value)
            if value is not None and c.out.dtype is not c.body.dtype:
                value = converted(value, c.out.dtype)
            if value is not None and isinstance(a.extent, Size):
                self.dead.setdefault(c.out.name, {})[p] = value
        made = msgspec.structs.replace(
            c, out=self.tensor(c.out), axes=self.axes(c.axes), reduce=self.axes(c.reduce),
            body=masked(tests, body, nothing),
        )  # fmt: skip
        self.positions.learn(made)
        sized = (
            (p, a) for p, a in enumerate(c.axes) if isinstance(a.extent, Size) and a not in own
        )
        self.poles.learn(c, {p for p, a in sized if self.poles.within(c.body, a, self._given(a))})
        return made

    def _harmless(self, c: Compute, a: Axis) -> bool:
        """Whether the terms beyond the size of `a` are neutral."""
        if not isinstance(a.extent, Size):
            return True
        return not self._gathers(c, a) and left_out(c.combiner, c.body, self._beyond(c.body, a))

    def _gathers(self, c: Compute, a: Axis) -> bool:
        """Whether an index may be out of range beyond the size of `a`: it depends on data, or on a size."""
        return any(
            self.positions.index(self.expr(i), int(n)) is None
            for x in loads(c.body)
            for i, n in zip(x.index, x.tensor.shape, strict=True)
            if _depends(i) and a in axes_of(i) and not self._fits(i, a, n)
        )

    def _fits(self, i: Expr, a: Axis, n: int) -> bool:
        value = self._beyond(i, a)
        return isinstance(value, int) and 0 <= value < int(n)

    def _beyond(self, body: Expr, a: Axis) -> Value | None:
        """The value of an expression beyond the size of `a`."""
        if not isinstance(a.extent, Size):
            return None
        given = self._given(a)
        return None if self.poles.within(body, a, given) else value_where(body, given)

    def _given(self, a: Axis) -> Given:
        """The values that are known beyond the size of `a`."""

        def given(e: Expr) -> Value | None:
            match e:
                case Binary("lt", x, Const(Size() as n)) if x == a and n == a.extent:
                    return False
                case Load(t, index):
                    dead = self.dead.get(t.name, {})
                    at = (v for p, v in dead.items() if index[p] == a and t.shape[p] == a.extent)
                    return next(at, None)
                case _:
                    return None

        return given

    def _scatter(self, s: Scatter) -> Scatter:
        """Points beyond a size repeat the write of the last point within it; with a combiner they write the neutral element."""
        sized = [(a, self.size(a.extent)) for a in s.axes if isinstance(a.extent, Size)]
        last = {
            a.name: binary("min", Axis(a.name, int(a.extent)), binary("sub", n, idx(1)))
            for a, n in sized
        }
        base, value = self.tensor(s.base), substitute(self.expr(s.value), last)
        some = [Binary("lt", idx(0), n) for a, n in sized if not _least(a.extent)]
        index, distinct = list[Expr](), s.distinct
        nowhere: list[Expr] = []  # written with the old value if there are no points at all
        for e, extent in zip(s.index, base.shape, strict=True):
            own = substitute(self.expr(e), last)
            moving = [a for a, _ in sized if a in axes_of(e)]
            if moving and s.combiner is not None:
                # Neutral elements are spread over all positions: several to one if there are fewer.
                most = int(moving[0].extent)
                turn = binary("mod", Axis(moving[0].name, most), idx(extent))
                distinct = distinct and most <= extent
                index.append(masked(self.inside(s.axes), own, turn))
            else:
                index.append(masked(some, own, idx(0)) if some and moving else own)
            nowhere.append(idx(0) if some and moving else own)
        if s.combiner is None:
            value = masked(some, value, Load(base, tuple(nowhere)))
        else:
            nothing = const(identity(s.combiner, value.dtype), value.dtype)
            value = masked(self.inside(s.axes), value, nothing)
        return msgspec.structs.replace(
            s, out=self.tensor(s.out), base=base, axes=self.axes(s.axes), index=tuple(index), value=value, distinct=distinct,
        )  # fmt: skip

    def _loop(self, s: Loop) -> Loop:
        n = s.axis.extent
        if isinstance(n, Size) and s.predicate is None and s.count is None:
            count = self.size(n)
            if not isinstance(count, Load):
                raise CaptureError(f"a loop of {n.expr} iterations, which depends on data")
            s = msgspec.structs.replace(s, count=count.tensor)
        return msgspec.structs.replace(
            s, axis=self.axes([s.axis])[0], body=tuple(self.body(s.body)),
            carried=tuple(Carry(*map(self.tensor, (c.init, c.param, c.result, c.out))) for c in s.carried),
            stacked=tuple(Stack(self.tensor(k.value), self.tensor(k.out)) for k in s.stacked),
        )  # fmt: skip

    def _branch(self, s: Branch) -> Branch:
        outs = tuple(BranchOut(*map(self.tensor, (o.then, o.otherwise, o.out))) for o in s.outs)
        return msgspec.structs.replace(
            s, then=tuple(self.body(s.then)), otherwise=tuple(self.body(s.otherwise)), outs=outs
        )

    # Inputs and outputs.

    def _partial(self, t: Tensor) -> tuple[str, ...]:
        """The sizes along the dimensions of the output `t`. A size that may be 0 gives no bound."""
        shape = t.shape if is_dense(t.shape) else (_flat_size(t),)
        given = (n if not is_data_dependent(n, self.sizes) else None for n in shape)
        sizes = (n if isinstance(n, Size) and n.low else None for n in given)
        return tuple(self.scalar(n).tensor.name if n else "" for n in sizes)

    def _input(self, t: Tensor, body: list[Statement]) -> Tensor:
        """The input as it is in memory. `t` becomes a copy of it with zeros beyond the size."""
        given = self.tensor(t) if is_dense(t.shape) else Tensor(t.name, (_most(t),), t.dtype)
        axes = [Axis(f"i{k}", n) for k, n in enumerate(t.shape)]
        index: Sequence[Expr] = axes
        if not is_dense(t.shape):
            index = reshape_index((_flat_size(t),), t.shape, axes)
        element = Load(given, tuple(map(self.expr, index)))
        zero = const(0, t.dtype)
        out = Tensor(self.names.unique(f"{t.name}_live"), tuple(map(int, t.shape)), t.dtype)
        inside = masked(self.inside(axes), element, zero)
        body.append(Compute(out, self.axes(axes), (), None, inside))
        self.inputs[t] = out
        self.dead[t.name] = {k: 0 for k, n in enumerate(t.shape) if isinstance(n, Size)}
        return given

    def _output(self, t: Tensor, body: list[Statement]) -> Tensor:
        """`t` as the caller receives it: compacted if elements beyond a size are in the middle."""
        if is_dense(t.shape):
            return self.tensor(t)
        flat = Tensor(self.names.unique(f"{t.name}_packed"), (_most(t),), t.dtype)
        n = _flat_size(t)
        axis = Axis("i0", n)
        index = reshape_index(t.shape, (n,), (axis,))
        element = self.expr(Load(t, index))
        body.append(
            compute(flat, lambda _: masked(self.inside([axis]), element, const(0, t.dtype)))
        )
        return flat


def _least(n: int) -> int:
    return n.low if isinstance(n, Size) else n


def _word(n: Size) -> str:
    """A name."""
    return "size_" + re.sub(r"\W+", "_", str(n.expr)).strip("_")


def _flat_size(t: Tensor) -> int:
    """The number of elements that `t` has in the call."""
    return math.prod(t.shape)


def _most(t: Tensor) -> int:
    return math.prod(map(int, t.shape))


def _depends(index: Expr) -> bool:
    """Whether an index depends on data, or on a size."""
    return bool(loads(index)) or any(
        isinstance(x, Const) and isinstance(x.value, Symbolic) for x in walk(index)
    )
