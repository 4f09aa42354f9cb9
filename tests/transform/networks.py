"""Small networks as tracing would leave them: unrolled, layer after layer, step after step."""

from collections.abc import Sequence

import numpy as np

from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import (
    Binary,
    Expr,
    Load,
    Select,
    Tensor,
    Unary,
    add,
    binary,
    const,
    idx,
    mul,
    sub,
)
from monotile.ir.program import Program, Statement, Weight, compute
from monotile.ir.scalar import Array
from monotile.ir.verify import verify

F32 = DType.F32


class Net:
    """Builds a Program statement by statement."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.weights: list[Weight] = []
        self.body: list[Statement] = []
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def input(self, *shape: int, dtype: DType = F32) -> Tensor:
        t = Tensor(self.name("x"), shape, dtype)
        self.inputs.append(t)
        return t

    def weight(self, *shape: int, dtype: DType = F32) -> Tensor:
        t = Tensor(self.name("w"), shape, dtype)
        self.weights.append(Weight(t, (f"{t.name}.part",)))
        return t

    def add(self, s: Statement, out: Tensor) -> Tensor:
        self.body.append(s)
        return out

    def zeros(self, *shape: int) -> Tensor:
        t = Tensor(self.name("zeros"), shape, F32)
        return self.add(compute(t, lambda *_: const(0.0, F32)), t)

    def linear(self, x: Tensor, w: Tensor, at: Sequence[Expr] = ()) -> Tensor:
        """x[at] @ w.T"""
        rows = x.shape[len(at) : -1]
        t = Tensor(self.name("mm"), (*rows, w.shape[0]), F32)

        def body(*i: Expr) -> Expr:
            *row, col, r = i
            return Binary("mul", Load(x, (*at, *row, r)), Load(w, (col, r)))

        return self.add(compute(t, body, reduce=(w.shape[1],), combiner="sum"), t)

    def pointwise(self, op: str, *args: Tensor) -> Tensor:
        t = Tensor(self.name(op), args[0].shape, F32)

        def body(*i: Expr) -> Expr:
            values = [Load(a, i[len(i) - len(a.shape) :]) for a in args]
            if len(values) == 1:
                return Unary(op, values[0])
            return Binary(op, values[0], values[1])

        return self.add(compute(t, body), t)

    def transposed(self, x: Tensor) -> Tensor:
        t = Tensor(self.name("transposed"), x.shape[::-1], x.dtype)
        return self.add(compute(t, lambda i, j: Load(x, (j, i))), t)

    def norm(self, x: Tensor, w: Tensor) -> Tensor:
        mean = Tensor(self.name("mean"), x.shape[:-1], F32)
        self.add(
            compute(
                mean,
                lambda *i: Binary("mul", Load(x, i), const(1 / x.shape[-1], F32)),
                reduce=(x.shape[-1],),
                combiner="sum",
            ),
            mean,
        )
        out = Tensor(self.name("norm"), x.shape, F32)

        def body(*i: Expr) -> Expr:
            return Binary("mul", Binary("sub", Load(x, i), Load(mean, i[:-1])), Load(w, i[-1:]))

        return self.add(compute(out, body), out)

    def stack(self, parts: Sequence[Tensor]) -> Tensor:
        """As the frontend lowers torch.stack: a balanced tree of Selects over the new axis."""
        t = Tensor(self.name("stack"), (len(parts), *parts[0].shape), F32)

        def body(g: Expr, *i: Expr) -> Expr:
            def tree(lo: int, hi: int) -> Expr:
                if hi - lo == 1:
                    return Load(parts[lo], i)
                mid = (lo + hi) // 2
                return Select(binary("lt", g, idx(mid)), tree(lo, mid), tree(mid, hi))

            return tree(0, len(parts))

        return self.add(compute(t, body), t)

    def cat(self, parts: Sequence[Tensor]) -> Tensor:
        """Along the first dimension, parts of equal shape."""
        n = parts[0].shape[0]
        t = Tensor(self.name("cat"), (n * len(parts), *parts[0].shape[1:]), F32)

        def body(g: Expr, *i: Expr) -> Expr:
            def tree(lo: int, hi: int) -> Expr:
                if hi - lo == 1:
                    return Load(parts[lo], (sub(g, idx(lo * n)), *i))
                mid = (lo + hi) // 2
                return Select(binary("lt", g, idx(mid * n)), tree(lo, mid), tree(mid, hi))

            return tree(0, len(parts))

        return self.add(compute(t, body), t)

    def cell(self, x: Tensor, at: Sequence[Expr], state: "State", w: "Cell") -> "State":
        """One LSTM cell, x[at] of shape (batch, width)."""
        h, c = state
        batch, width = h.shape
        gates = []
        for source, weight, where in ((x, w[0], at), (h, w[1], ())):
            t = Tensor(self.name("gates"), (batch, 4, width), F32)

            def body(
                b: Expr,
                q: Expr,
                j: Expr,
                r: Expr,
                source: Tensor = source,
                weight: Tensor = weight,
                where: Sequence[Expr] = where,
            ) -> Expr:
                row = add(mul(q, idx(width)), j)
                return Binary("mul", Load(source, (*where, b, r)), Load(weight, (row, r)))

            gates.append(self.add(compute(t, body, reduce=(source.shape[-1],), combiner="sum"), t))

        def gate(q: int, b: Expr, j: Expr) -> Expr:
            return Binary("add", Load(gates[0], (b, idx(q), j)), Load(gates[1], (b, idx(q), j)))

        def keep(b: Expr, j: Expr) -> Expr:
            left = Binary("mul", gate(0, b, j), Load(c, (b, j)))
            return Binary("add", left, Binary("mul", gate(1, b, j), Unary("tanh", gate(2, b, j))))

        c_new = Tensor(self.name("c"), h.shape, F32)
        self.add(compute(c_new, keep), c_new)
        h_new = Tensor(self.name("h"), h.shape, F32)
        self.add(
            compute(
                h_new,
                lambda b, j: Binary("mul", gate(3, b, j), Unary("tanh", Load(c_new, (b, j)))),
            ),
            h_new,
        )
        return h_new, c_new

    def cell_weights(self, width: int) -> "Cell":
        return self.weight(4 * width, width), self.weight(4 * width, width)

    def program(self, *outputs: Tensor) -> Program:
        p = Program(tuple(self.inputs), tuple(self.weights), tuple(self.body), outputs)
        verify(p)
        return p


State = tuple[Tensor, Tensor]
Cell = tuple[Tensor, Tensor]


def values_for(p: Program, seed: int = 0) -> dict[str, Array]:
    """Small random values for the inputs and the weights' parts."""
    rng = np.random.default_rng(seed)
    out = {t.name: (rng.standard_normal(t.shape) * 0.5).astype(t.dtype.numpy) for t in p.inputs}
    for w in p.weights:
        shape = w.tensor.shape[w.table :]
        for part in w.parts:
            out[part] = (rng.standard_normal(shape) * 0.5).astype(w.tensor.dtype.numpy)
    return out


def assert_same(before: Program, after: Program, seed: int = 0, tolerance: float = 1e-5) -> None:
    """`after` is valid and means what `before` means."""
    verify(after)
    values = values_for(before, seed)
    for a, b in zip(evaluate(before, values), evaluate(after, values), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def mlp(layers: int, width: int = 4, rows: int = 3) -> Program:
    """A residual network: every layer two products, a bias each, a norm before the second."""
    n = Net()
    x = n.norm(n.input(rows, width), n.weight(width))
    for _ in range(layers):
        a = n.pointwise("add", n.linear(x, n.weight(width, width)), n.weight(width))
        b = n.linear(n.pointwise("tanh", a), n.weight(width, width))
        x = n.norm(n.pointwise("add", b, x), n.weight(width))
    return n.program(n.pointwise("tanh", x))


def recurrence(
    layers: int, steps: int, width: int = 3, batch: int = 2, *, step_outer: bool, ends: bool = False
) -> Program:
    """A hand-written LSTM; every step of the last layer is stacked. ends: the last states, too."""
    n = Net()
    xs = n.input(steps, batch, width)
    cells = [n.cell_weights(width) for _ in range(layers)]
    zero = n.zeros(batch, width), n.zeros(batch, width)
    states = [zero] * layers
    if step_outer:
        outs = []
        for t in range(steps):
            x, at = xs, [idx(t)]
            for k in range(layers):
                states[k] = n.cell(x, at, states[k], cells[k])
                x, at = states[k][0], []
            outs.append(x)
    else:
        sequence = [(xs, [idx(t)]) for t in range(steps)]
        outs = []
        for k in range(layers):
            outs = []
            for x, at in sequence:
                states[k] = n.cell(x, at, states[k], cells[k])
                outs.append(states[k][0])
            sequence = [(h, []) for h in outs]
    last = [t for s in states for t in s] if ends else []
    return n.program(n.stack(outs), *last)
