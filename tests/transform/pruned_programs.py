"""Random networks of products, gates, heads and groups whose weights have rows, columns and blocks of zeros."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from monotile.ir.expr import (
    Binary,
    Expr,
    Load,
    Select,
    Tensor,
    add,
    binary,
    const,
    idx,
    mul,
)
from monotile.ir.program import Program, compute
from monotile.ir.scalar import Array
from tests.transform.networks import F32, Net

Draw = Callable[[st.SearchStrategy[Any]], Any]


class Pruned(Net):
    """Draws statements over tensors of rows and features."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.draw = draw

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def emit(
        self, stem: str, shape: tuple[int, ...], body: Callable[..., Expr], *reduce: int
    ) -> Tensor:
        t = Tensor(self.name(stem), shape, F32)
        s = compute(t, body, reduce=reduce, combiner="sum" if reduce else None)
        return self.add(s, t)

    def product(self, x: Tensor) -> Tensor:
        return self.linear(x, self.weight(self.pick(4, 6, 8, 16), x.shape[-1]))

    def biased(self, x: Tensor) -> Tensor:
        return self.pointwise("add", x, self.weight(x.shape[-1]))

    def gated(self, x: Tensor) -> Tensor:
        return self.pointwise("mul", x, self.weight(x.shape[-1]))

    def relu(self, x: Tensor) -> Tensor:
        return self.emit("relu", x.shape, lambda *i: Binary("max", Load(x, i), const(0.0, F32)))

    def tanh(self, x: Tensor) -> Tensor:
        return self.pointwise("tanh", x)

    def normed(self, x: Tensor) -> Tensor:
        return self.norm(x, self.weight(x.shape[-1]))

    def halves(self, x: Tensor) -> Tensor:
        n = x.shape[1] // 2
        return self.emit(
            "glu",
            (x.shape[0], n),
            lambda r, c: Binary("mul", Load(x, (r, c)), Load(x, (r, add(c, idx(n))))),
        )

    def rotated(self, x: Tensor) -> Tensor:
        """The halves of each pair of features exchanged, as a rotary embedding does."""
        n = x.shape[1] // 2
        return self.emit(
            "rotated",
            (x.shape[0], 2, n),
            lambda r, h, c: Select(
                binary("lt", c, idx(n // 2)),
                Load(x, (r, add(mul(h, idx(n)), add(c, idx(n - n // 2))))),
                Load(x, (r, add(mul(h, idx(n)), add(c, idx(-(n // 2)))))),
            ),
        )

    def grouped(self, x: Tensor) -> Tensor:
        w = self.weight(8, x.shape[1] // 2)
        n = x.shape[1] // 2

        def body(r: Expr, c: Expr, k: Expr) -> Expr:
            read = add(mul(Binary("floordiv", c, idx(4)), idx(n)), k)
            return Binary("mul", Load(x, (r, read)), Load(w, (c, k)))

        return self.emit("grouped", (x.shape[0], 8), body, n)

    def heads(self, x: Tensor) -> Tensor:
        """Attention without a softmax, of two query heads to each head of keys."""
        rows, n = x.shape
        q, k = self.linear(x, self.weight(16, n)), self.linear(x, self.weight(8, n))
        v = self.biased(self.linear(x, self.weight(8, n)))

        def at(h: Expr, d: Expr) -> Expr:
            return add(mul(Binary("floordiv", h, idx(2)), idx(4)), d)

        scores = self.emit(
            "scores",
            (4, rows, rows),
            lambda h, i, j, d: Binary(
                "mul", Load(q, (i, add(mul(h, idx(4)), d))), Load(k, (j, at(h, d)))
            ),
            4,
        )
        mixed = self.emit(
            "mixed",
            (4, rows, 4),
            lambda h, i, d, j: Binary("mul", Load(scores, (h, i, j)), Load(v, (j, at(h, d)))),
            rows,
        )
        w = self.weight(6, 16)

        def merged(i: Expr, c: Expr, r: Expr) -> Expr:
            one = Load(mixed, (Binary("floordiv", r, idx(4)), i, Binary("mod", r, idx(4))))
            return Binary("mul", one, Load(w, (c, r)))

        return self.emit("merged", (rows, 6), merged, 16)


@st.composite
def pruned(draw: Draw) -> Program:
    """A network that gives one tensor."""
    n = Pruned(draw)
    made = [n.input(3, draw(st.sampled_from((4, 8))))]
    for _ in range(draw(st.integers(2, 9))):
        x = draw(st.sampled_from(made[-2:]))
        alike = [y for y in made if y.shape == x.shape]
        ways: list[Callable[[Tensor], Tensor]] = [
            n.product,
            n.product,
            n.biased,
            n.gated,
            n.relu,
            n.tanh,
        ]
        ways += [n.normed, n.halves, n.grouped, n.rotated] if x.shape[-1] % 4 == 0 else []
        ways += [n.heads, partial(n.pointwise, n.pick("add", "mul"), n.pick(*alike))]
        y = draw(st.sampled_from(ways))(x)
        if len(y.shape) == 3:
            y = n.emit(
                "flat",
                (3, y.shape[1] * y.shape[2]),
                lambda r, c, y=y: Load(
                    y,
                    (r, Binary("floordiv", c, idx(y.shape[2])), Binary("mod", c, idx(y.shape[2]))),
                ),
            )
        made.append(y)
    return n.program(n.linear(made[-1], n.weight(5, made[-1].shape[-1])))


def pruned_values(draw: Draw, program: Program) -> dict[str, Array]:
    """Of inputs and weights; of these rows, columns and aligned blocks are zero."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    out = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in program.inputs}
    for w in program.weights:
        x = rng.standard_normal(w.tensor.shape).astype(np.float32)
        for d, n in enumerate(x.shape):
            gone = rng.random(n) < rng.choice((0.0, 0.3, 0.6))
            block = int(rng.choice((1, 2, 4)))
            gone |= np.repeat(rng.random(-(-n // block)) < rng.choice((0.0, 0.4)), block)[:n]
            np.moveaxis(x, d, 0)[gone] = 0
        out[w.parts[0]] = x
    return out
