"""Random small Programs, and values for them, as hypothesis strategies.

Every Program is well formed and every index in bounds. Values are small dyadic numbers with some zeros of
either sign, infinities and NaNs, so that what a transform keeps can be compared bit for bit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    Unary,
    cast,
    const,
    idx,
)
from monotile.ir.intervals import interval
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
    Weight,
    compute,
)

Draw = Callable[[st.SearchStrategy[Any]], Any]
FLOATS = (DType.F32, DType.F16, DType.BF16)
TYPES = (*FLOATS, DType.F32, DType.F64, DType.I64, DType.I32, DType.BOOL)
SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"))


class Builder:
    """Draws expressions and statements; `tensors` are those that may be used next.

    static: no branches, and no loops whose number of iterations depends on data.
    """

    def __init__(self, draw: Draw, *, static: bool = False) -> None:
        self.draw = draw
        self.static = static
        self.count = 0
        self.tensors: list[Tensor] = []
        self.loops: list[Axis] = []

    def pick(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(options))

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) < percent

    def shape(self) -> tuple[int, ...]:
        return tuple(self.draw(st.lists(st.integers(1, 4), max_size=3)))

    def tensor(self, shape: tuple[int, ...], dtype: DType, stem: str = "t") -> Tensor:
        self.count += 1
        return Tensor(f"{stem}{self.count}", shape, dtype)

    # Expressions.

    def integer(self, axes: Sequence[Axis], depth: int) -> Expr:
        """Any int64 expression."""
        if depth == 0 or self.chance(30):
            return self.pick([*axes, idx(self.draw(st.integers(-3, 8)))])
        op = self.pick(["add", "add", "sub", "mul", "floordiv", "mod", "min", "max"])
        a = self.integer(axes, depth - 1)
        if op in ("mul", "floordiv", "mod"):
            return Binary(op, a, idx(self.draw(st.integers(1, 6))))
        return Binary(op, a, self.integer(axes, depth - 1))

    def index(self, axes: Sequence[Axis], extent: int, depth: int) -> Expr:
        """An int64 expression between 0 and extent - 1."""
        fitting = [a for a in axes if a.extent <= extent]
        if fitting and self.chance(60):
            return self.pick(fitting)
        gathers = [t for t in self.tensors if t.dtype is DType.I64]
        if gathers and self.chance(20):
            e: Expr = self.load(self.pick(gathers), axes, 0)
        else:
            e = self.integer(axes, depth)
        span = interval(e)
        assert span is not None
        return e if span.inside(0, extent - 1) else Binary("mod", e, idx(extent))

    def load(self, t: Tensor, axes: Sequence[Axis], depth: int) -> Expr:
        return Load(t, tuple(self.index(axes, n, depth) for n in t.shape))

    def guarded(self, t: Tensor, axes: Sequence[Axis]) -> Expr:
        """Padding: a load where its index is in bounds, else a literal."""
        e = self.integer(axes, 2)
        inside = Binary("and", Binary("le", idx(0), e), Binary("lt", e, idx(t.shape[0])))
        rest = tuple(self.index(axes, n, 1) for n in t.shape[1:])
        return Select(inside, Load(t, (e, *rest)), self.literal(t.dtype))

    def literal(self, dtype: DType) -> Const:
        if dtype is DType.BOOL:
            return const(self.draw(st.booleans()), dtype)
        if not dtype.is_float:
            return const(self.draw(st.integers(-3, 3)), dtype)
        return const(
            self.pick([0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -0.0, float("inf"), float("nan")]), dtype
        )

    def value(self, dtype: DType, axes: Sequence[Axis], depth: int) -> Expr:
        """Any expression of `dtype`."""
        if depth == 0 or self.chance(20):
            return self.leaf(dtype, axes)
        if self.chance(20):
            cond = self.value(DType.BOOL, axes, depth - 1)
            return Select(
                cond, self.value(dtype, axes, depth - 1), self.value(dtype, axes, depth - 1)
            )
        if self.chance(15):
            other = self.pick(TYPES)
            if not other.is_float or dtype.is_float or dtype is DType.BOOL:
                return cast(self.value(other, axes, depth - 1), dtype)
        if dtype is DType.BOOL:
            if self.chance(40):
                op = self.pick(["and", "or", "bitxor"])
                return Binary(
                    op, self.value(dtype, axes, depth - 1), self.value(dtype, axes, depth - 1)
                )
            if self.chance(30):
                return Unary("not", self.value(dtype, axes, depth - 1))
            side = self.pick([DType.I64, DType.F32])
            op = self.pick(["lt", "le", "gt", "ge", "eq", "ne"])
            return Binary(op, self.value(side, axes, depth - 1), self.value(side, axes, depth - 1))
        if self.chance(20):
            return Unary(self.pick(["neg", "abs"]), self.value(dtype, axes, depth - 1))
        ops = ["add", "sub", "mul", "min", "max"]
        op = self.pick(
            ops + (["div"] if dtype.is_float else ["floordiv", "mod", "truncdiv", "rem"])
        )
        return Binary(op, self.value(dtype, axes, depth - 1), self.value(dtype, axes, depth - 1))

    def leaf(self, dtype: DType, axes: Sequence[Axis]) -> Expr:
        if self.chance(20) or not self.tensors:
            return self.literal(dtype)
        if dtype is DType.I64 and self.chance(30):
            return self.integer(axes, 2)
        of_type = [t for t in self.tensors if t.dtype is dtype]
        t = self.pick(of_type or [t for t in self.tensors if not t.dtype.is_float] or self.tensors)
        if t.dtype.is_float and not dtype.is_float and dtype is not DType.BOOL:
            return self.literal(dtype)  # NaN has no integer
        if t.shape and self.chance(20):
            return cast(self.guarded(t, axes), dtype)
        return cast(self.load(t, axes, 2), dtype)

    # Statements.

    def body(self, size: int, depth: int) -> tuple[Statement, ...]:
        return tuple(self.one(depth) for _ in range(size))

    def one(self, depth: int) -> Statement:
        kinds = ["map", "map", "map", "view", "view", "reduce", "scatter"]
        nested = ["loop"] if self.static else ["loop", "branch"]
        kind = self.pick(kinds + (nested if depth else []))
        match kind:
            case "loop":
                return self.loop(depth)
            case "branch":
                return self.branch(depth)
            case "scatter":
                return self.scatter()
            case "view":
                s = self.view()
            case "reduce":
                s = self.reduction()
            case _:
                s = self.map()
        self.tensors.append(s.out)
        return s

    def map(self) -> Compute:
        dtype = self.pick(TYPES)
        out = self.tensor(self.shape(), dtype)
        wide = self.pick([dtype, dtype.compute])
        return compute(out, lambda *axes: self.value(wide, [*axes, *self.loops], 3), origin="map")

    def view(self) -> Compute:
        t = self.pick(self.tensors)
        out = self.tensor(self.shape(), t.dtype)
        return compute(out, lambda *axes: self.load(t, [*axes, *self.loops], 2), origin="view")

    def reduction(self) -> Compute:
        combiner = self.pick(["sum", "max", "min", "prod", "any", "all", "argmax", "argmin"])
        logical = combiner in ("any", "all")
        dtype = DType.BOOL if logical else self.pick([DType.F32, DType.I64, DType.F16])
        position = combiner in ("argmax", "argmin")
        out = self.tensor(self.shape(), DType.I64 if position else dtype)
        extents = tuple(self.draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
        wide = dtype.compute
        return compute(
            out,
            lambda *axes: self.value(wide, [*axes, *self.loops], 2),
            reduce=extents,
            combiner=combiner,
            origin="reduce",
        )

    def scatter(self) -> Scatter:
        return self.update(self.pick(self.tensors))

    def update(self, base: Tensor) -> Scatter:
        out = self.tensor(base.shape, base.dtype)
        axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(self.shape()))
        known = [*axes, *self.loops]
        index = tuple(self.index(known, n, 2) for n in base.shape)
        value = self.value(base.dtype, known, 2)
        self.tensors.append(out)
        return Scatter(out, base, axes, index, value, None, "scatter")

    def loop(self, depth: int) -> Loop:
        self.count += 1
        axis = Axis(f"l{self.count}", self.draw(st.integers(1, 3)))
        inits = [self.pick(self.tensors) for _ in range(self.draw(st.integers(1, 2)))]
        flags = [t for t in self.tensors if t.shape == () and t.dtype is DType.BOOL]
        until = bool(flags) and not self.static and self.chance(50)
        if until:
            inits.append(self.pick(flags))
        params = [self.tensor(t.shape, t.dtype, "p") for t in inits]
        goes_on = self.tensor((), DType.BOOL, "go")
        outside = list(self.tensors)
        self.tensors += params
        self.loops.append(axis)
        body = self.body(self.draw(st.integers(1, 3)), depth - 1)
        if until:
            body = (*body, compute(goes_on, lambda: self.value(DType.BOOL, [*self.loops], 2)))
        update = self.update(self.pick(params)) if self.chance(40) else None
        body = (*body, update) if update is not None else body
        self.loops.pop()
        inside, self.tensors = self.tensors, outside
        carried: list[Carry] = []
        for init, param in zip(inits, params, strict=True):
            fitting = [t for t in inside if (t.shape, t.dtype) == (init.shape, init.dtype)]
            if until and param is params[-1]:
                fitting = [goes_on]
            elif update is not None and param == update.base:
                fitting = [update.out]
            result = self.pick(fitting[-3:])
            carried.append(Carry(init, param, result, self.tensor(init.shape, init.dtype)))
        value = self.pick(inside[-3:])
        stacked = Stack(value, self.tensor((axis.extent, *value.shape), value.dtype))
        counts = [t for t in outside if t.shape == () and t.dtype is DType.I64]
        dynamic = bool(counts) and not self.static and not until and self.chance(50)
        count = self.pick(counts) if dynamic else None
        predicate = carried[-1].result if until else None
        self.tensors += [*(c.out for c in carried), stacked.out]
        return Loop(axis, tuple(carried), (stacked,), body, count, predicate, "loop")

    def branch(self, depth: int) -> Statement:
        known = [t for t in self.tensors if t.shape == () and t.dtype is DType.BOOL]
        if not known:
            return self.loop(depth)
        outside = list(self.tensors)
        sides: list[tuple[tuple[Statement, ...], list[Tensor]]] = []
        for _ in range(2):
            self.tensors = list(outside)
            sides.append((self.body(self.draw(st.integers(0, 2)), depth - 1), self.tensors))
        self.tensors = outside
        (then, a), (otherwise, b) = sides
        x = self.pick(a[-2:])
        y = self.pick([t for t in b if (t.shape, t.dtype) == (x.shape, x.dtype)] or [x])
        if y not in b:  # defined on the one side only
            x = y = self.pick(outside)
        out = self.tensor(x.shape, x.dtype)
        self.tensors.append(out)
        return Branch(self.pick(known), then, otherwise, (BranchOut(x, y, out),), "branch")


@st.composite
def programs(draw: Draw, depth: int = 2, static: bool = False) -> Program:
    """A Program of a few statements; loops and branches nest `depth` deep, and some tensors are states.

    static: no control flow that depends on data.
    """
    b = Builder(draw, static=static)
    types = [DType.F32, DType.I64, *draw(st.lists(st.sampled_from(TYPES), max_size=2))]
    inputs = [b.tensor(b.shape(), t, "x") for t in types]
    if draw(st.booleans()):
        inputs += [b.tensor((), DType.BOOL, "x"), b.tensor((), DType.I64, "x")]
    table = draw(st.integers(1, 3))
    weights = [
        Weight(b.tensor((3, 2), DType.F32, "w"), ("a",)),
        Weight(b.tensor((table, 2), DType.F16, "w"), tuple(f"b{k}" for k in range(table)), 1),
    ]
    b.tensors = [*inputs, *(w.tensor for w in weights)]
    body = b.body(draw(st.integers(2, 6)), depth)
    outputs = draw(st.lists(st.sampled_from(b.tensors[-6:]), min_size=1, max_size=3))
    types = {t.name: (t.shape, t.dtype) for t in inputs}
    types |= {p: (w.tensor.shape[w.table :], w.tensor.dtype) for w in weights for p in w.parts}
    # A weight in several parts is a state under its own name, or its parts are under theirs.
    whole = [w for w in weights if len(w.parts) > 1 and draw(st.booleans())]
    types = {n: t for n, t in types.items() if not any(n in w.parts for w in whole)}
    types |= {w.tensor.name: (w.tensor.shape, w.tensor.dtype) for w in whole}
    states: dict[str, Tensor] = {}
    for name in draw(st.lists(st.sampled_from(sorted(types)), unique=True, max_size=2)):
        fitting = [t for t in b.tensors if (t.shape, t.dtype) == types[name]]
        if fitting:
            states[name] = b.pick(fitting[-3:])
    everything = (*outputs, *states.values())
    return Program(tuple(inputs), tuple(weights), body, everything, tuple(states))


def values(program: Program, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays for every input and weight part of `program`."""
    rng = np.random.default_rng(seed)

    def some(shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, Any]:
        x = rng.integers(-4, 8, shape) / (2 if dtype.is_float else 1)
        if dtype.is_float:
            x = np.where(rng.random(shape) < 0.15, rng.choice(SPECIAL, shape), x)
        if dtype is DType.BOOL:
            x = rng.random(shape) < 0.5
        return np.asarray(x).astype(dtype.numpy)

    out = {t.name: some(t.shape, t.dtype) for t in program.inputs}
    for w in program.weights:
        out |= {p: some(w.tensor.shape[w.table :], w.tensor.dtype) for p in w.parts}
    return out


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Bit for bit, but that any NaN equals any NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind not in "fV":
        return bool(np.array_equal(a, b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    nan = np.isnan(x) & np.isnan(y)
    return bool(np.all(nan | ((x == y) & (np.signbit(x) == np.signbit(y)))))
