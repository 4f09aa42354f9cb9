"""Recurrent layers: one Loop over the steps for each layer and direction.

A step multiplies the input and the state by their weights inside the loop, so that layers and steps
form a perfect nest, which a later pass may skew into a wavefront (cuDNN's schedule; FractalTensor,
SOSP'24). The gates are an axis of their own: row q * hidden + j of a weight is gate q of unit j.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from monotile.frontends.builder import Builder, Unsupported, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.expr import Axis, Expr, Tensor, idx
from monotile.ir.program import Carry, Loop, Stack

Lowering = Callable[..., Any]
At = Callable[[Expr, Expr], Expr]  # the element of a step's input at (batch, feature)


class Weights(NamedTuple):
    """The weights of one layer in one direction. projection: of an LSTM's hidden state (proj_size), or None."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None
    hidden_bias: Tensor | None
    projection: Tensor | None


class Step(NamedTuple):
    """The input of one step: its shape and elements. when: its index, if it is one of a sequence."""

    shape: tuple[int, int]
    at: At
    when: Expr | None = None


# One step of a cell: (builder, input, states, weights) -> new states, hidden state first.
Cell = Callable[[Builder, Step, Sequence[Tensor], Weights], tuple[Tensor, ...]]


def _gates(b: Builder, x: Step, weight: Tensor, count: int, part: str) -> Tensor:
    """[batch, gate, unit]: the features of `x` times the weight's rows. count: gates."""
    (batch, width), size = x.shape, weight.shape[0] // count
    wide = weight.dtype.compute

    def body(n: Expr, q: Expr, j: Expr, r: Expr) -> Expr:
        return s.mul(x.at(n, r), raised(weight, [s.add(s.mul(q, size), j), r]))

    return b.emit((batch, count, size), wide, body, reduce=(width,), combiner="sum", part=part)


class _Gates(NamedTuple):
    """Both products of a step; `sums` adds them and their biases."""

    from_input: Tensor
    from_hidden: Tensor
    weights: Weights
    size: int

    def of_input(self, n: Expr, q: int, j: Expr) -> Expr:
        v: Expr = load(self.from_input, [n, idx(q), j])
        return self._biased(v, self.weights.input_bias, q, j)

    def of_hidden(self, n: Expr, q: int, j: Expr) -> Expr:
        v: Expr = load(self.from_hidden, [n, idx(q), j])
        return self._biased(v, self.weights.hidden_bias, q, j)

    def sums(self, n: Expr, q: int, j: Expr) -> Expr:
        return s.add(self.of_input(n, q, j), self.of_hidden(n, q, j))

    def _biased(self, v: Expr, bias: Tensor | None, q: int, j: Expr) -> Expr:
        return v if bias is None else s.add(v, raised(bias, [s.add(j, q * self.size)]))


def _products(b: Builder, x: Step, h: Tensor, w: Weights, count: int) -> _Gates:
    state = Step((x.shape[0], h.shape[1]), lambda n, r: raised(h, [n, r]))
    from_input = _gates(b, x, w.input, count, "input_gates")
    from_hidden = _gates(b, state, w.hidden, count, "hidden_gates")
    return _Gates(from_input, from_hidden, w, w.hidden.shape[0] // count)


def lstm_step(b: Builder, x: Step, states: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """Gates in PyTorch's order: input, forget, cell, output."""
    h, c = states
    g = _products(b, x, h, w, 4)

    def cell(n: Expr, j: Expr) -> Expr:
        kept = s.mul(s.sigmoid(g.sums(n, 1, j)), raised(c, [n, j]))
        return s.add(kept, s.mul(s.sigmoid(g.sums(n, 0, j)), s.tanh(g.sums(n, 2, j))))

    new_c = b.emit(c.shape, c.dtype, cell, part="cell")

    def hidden(n: Expr, j: Expr) -> Expr:
        return s.mul(s.sigmoid(g.sums(n, 3, j)), s.tanh(raised(new_c, [n, j])))

    projection = w.projection
    if projection is None:
        return b.emit(h.shape, h.dtype, hidden, part="hidden"), new_c
    full = b.emit(c.shape, h.dtype, hidden, part="unprojected")
    new_h = b.emit(
        h.shape,
        h.dtype,
        lambda n, j, r: s.mul(raised(full, [n, r]), raised(projection, [j, r])),
        reduce=(full.shape[1],),
        combiner="sum",
        part="hidden",
    )
    return new_h, new_c


def gru_step(b: Builder, x: Step, states: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
    """Gates in PyTorch's order: reset, update, new; the reset gate scales the hidden product."""
    (h,) = states
    g = _products(b, x, h, w, 3)

    def hidden(n: Expr, j: Expr) -> Expr:
        reset, update = s.sigmoid(g.sums(n, 0, j)), s.sigmoid(g.sums(n, 1, j))
        new = s.tanh(s.add(g.of_input(n, 2, j), s.mul(reset, g.of_hidden(n, 2, j))))
        return s.add(s.mul(s.sub(raised(h, [n, j]), new), update), new)

    return (b.emit(h.shape, h.dtype, hidden, part="hidden"),)


def _plain_step(activation: Callable[[Expr], Expr]) -> Cell:
    def step(b: Builder, x: Step, states: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
        (h,) = states
        g = _products(b, x, h, w, 1)
        return (b.emit(h.shape, h.dtype, lambda n, j: activation(g.sums(n, 0, j)), part="hidden"),)

    return step


_tanh_step = _plain_step(s.tanh)
_relu_step = _plain_step(lambda v: s.maximum(v, 0))


def _ending(cell: Cell, lengths: Tensor) -> Cell:
    """`cell`, with the states of sequence n kept from step lengths[n] on; in the other direction it begins there."""

    def step(b: Builder, x: Step, states: Sequence[Tensor], w: Weights) -> tuple[Tensor, ...]:
        when = x.when
        assert when is not None

        def kept(old: Tensor, new: Tensor) -> Tensor:
            def body(n: Expr, j: Expr) -> Expr:
                inside = s.lt(when, load(lengths, [n]))
                return s.select(inside, load(new, [n, j]), load(old, [n, j]))

            return b.emit(old.shape, old.dtype, body, part="kept")

        return tuple(map(kept, states, cell(b, x, states, w)))

    return step


def _layer(
    b: Builder, cell: Cell, x: Tensor, states: Sequence[Tensor], w: Weights, backward: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer in one direction over x[step, batch, feature]: the stack of hidden states, in the order of their computation, and the final
    states."""
    steps, batch, features = x.shape
    inner = b.nested()
    axis = Axis(b.names.unique(f"{b.node}_step"), steps)
    when: Expr = s.sub(idx(steps - 1), axis) if backward else axis
    given = Step((batch, features), lambda n, r: raised(x, [when, n, r]), when)
    params = [b.tensor(t.shape, t.dtype, "state") for t in states]
    results = cell(inner, given, params, w)
    carried = tuple(
        Carry(init, param, result, b.tensor(init.shape, init.dtype, "final"))
        for init, param, result in zip(states, params, results, strict=True)
    )
    stack = Stack(results[0], b.tensor((steps, *results[0].shape), results[0].dtype, "steps"))
    b.append(Loop(axis, carried, (stack,), tuple(inner.statements), origin=b.origin))
    return stack.out, tuple(c.out for c in carried)


def _initial(b: Builder, stacked: Tensor, k: int) -> Tensor:
    """The initial states of layer and direction number `k`."""
    return b.emit(
        stacked.shape[1:], stacked.dtype, lambda *i: load(stacked, [idx(k), *i]), part="initial"
    )


def _both_directions(b: Builder, forward: Tensor, backward: Tensor) -> Tensor:
    """Concatenates the features of both directions, the backward one in order of time."""
    steps, batch, width = forward.shape

    def body(t: Expr, n: Expr, j: Expr) -> Expr:
        there = load(backward, [s.sub(idx(steps - 1), t), n, s.sub(j, width)])
        return s.select(s.lt(j, width), load(forward, [t, n, j]), there)

    shape = (steps, batch, width + backward.shape[2])
    return b.emit(shape, forward.dtype, body, part="both")


def _stacked(b: Builder, tensors: Sequence[Tensor], index: int) -> Tensor:
    """Result `index`: `tensors` along a new first dimension, by a balanced tree of Selects."""

    def pick(i: Sequence[Expr], low: int, high: int) -> Expr:
        if high - low == 1:
            return load(tensors[low], i[1:])
        half = (low + high) // 2
        return s.select(s.lt(i[0], half), pick(i, low, half), pick(i, half, high))

    return b.result(lambda *i: pick(i, 0, len(tensors)), index=index)


def _take_weights(params: Sequence[Tensor], biases: bool, projected: bool) -> list[Weights]:
    """PyTorch's flat list of parameters, by layer and direction."""
    each = 2 + 2 * biases + projected
    cut: list[Weights] = []
    for k in range(0, len(params), each):
        part = list(params[k : k + each])
        bias = part[2:4] if biases else [None, None]
        cut.append(Weights(part[0], part[1], bias[0], bias[1], part[-1] if projected else None))
    return cut


def _network(
    b: Builder,
    cell: Cell,
    x: Tensor,
    initial: Sequence[Tensor],
    weights: Sequence[Weights],
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """The output and the final states. initial: each state of every layer and direction, stacked."""
    if len(x.shape) != 3:
        raise Unsupported("packed sequences")
    directions = 2 if bidirectional else 1
    node = b.node
    current = x
    if batch_first:
        steps = (x.shape[1], x.shape[0], x.shape[2])
        current = b.emit(steps, x.dtype, lambda t, n, j: load(x, [n, t, j]), part="by_step")
    finals: list[tuple[Tensor, ...]] = []
    for layer in range(len(weights) // directions):
        outs: list[Tensor] = []
        for direction in range(directions):
            k = layer * directions + direction
            b.node = f"{node}_l{layer}" + ("_reverse" if direction else "")
            states = [_initial(b, h, k) for h in initial]
            out, final = _layer(b, cell, current, states, weights[k], backward=direction == 1)
            outs.append(out)
            finals.append(final)
        current = outs[0] if directions == 1 else _both_directions(b, outs[0], outs[1])
    b.node = node
    if batch_first:
        by_step = current
        current = b.result(lambda n, t, j: load(by_step, [t, n, j]), index=0)
    states = tuple(_stacked(b, [f[k] for f in finals], 1 + k) for k in range(len(initial)))
    return (current, *states)


def lstm(
    b: Builder,
    x: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    projected = hx[0].shape[-1] != hx[1].shape[-1]
    weights = _take_weights(params, has_biases, projected)
    return _network(b, lstm_step, x, hx, weights, bidirectional, batch_first)


def _one_state(cell: Cell) -> Lowering:
    def lower(
        b: Builder,
        x: Tensor,
        hx: Tensor,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...]:
        weights = _take_weights(params, has_biases, projected=False)
        return _network(b, cell, x, [hx], weights, bidirectional, batch_first)

    return lower


_CELLS = {"LSTM": lstm_step, "GRU": gru_step, "RNN_TANH": _tanh_step, "RNN_RELU": _relu_step}


def packed_rnn(
    b: Builder,
    x: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    lengths: Tensor,
    mode: str,
) -> tuple[Tensor, ...]:
    """Layers of sequences that end at different steps (`frontends/torch/tracing/packed_sequences.py`)."""
    projected = hx[0].shape[-1] != hx[-1].shape[-1]
    weights = _take_weights(params, has_biases, projected)
    return _network(b, _ending(_CELLS[mode], lengths), x, hx, weights, bidirectional, False)


def packed_lengths(b: Builder, lengths: Tensor, steps: int) -> Tensor:
    """The lengths, each looked up in a table of all possible lengths: the index check of a call then checks their range."""
    most = int(steps)
    name = f"lengths_descending_up_to_{most}"
    table = b.table(name, name, lambda: np.arange(1, most + 1))

    def body(n: Expr) -> Expr:
        own, before = load(lengths, [n]), load(lengths, [s.maximum(s.sub(n, 1), 0)])
        fits = s.both(s.le(own, steps), s.le(own, before))
        return load(table, [s.select(fits, s.sub(own, 1), idx(-1))])

    return b.result(body)


def _given(x: Tensor) -> Step:
    if len(x.shape) != 2:
        raise Unsupported("a cell's input without a batch dimension")
    return Step((x.shape[0], x.shape[1]), lambda n, r: raised(x, [n, r]))


def lstm_cell(
    b: Builder,
    x: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, ...]:
    return lstm_step(b, _given(x), hx, Weights(w_ih, w_hh, b_ih, b_hh, None))


def _single_cell(cell: Cell) -> Lowering:
    def lower(
        b: Builder,
        x: Tensor,
        hx: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Tensor:
        return cell(b, _given(x), [hx], Weights(w_ih, w_hh, b_ih, b_hh, None))[0]

    return lower


LOWERINGS: Mapping[str, Lowering] = {
    "aten.lstm.input": lstm,
    "aten.gru.input": _one_state(gru_step),
    "aten.rnn_tanh.input": _one_state(_tanh_step),
    "aten.rnn_relu.input": _one_state(_relu_step),
    "aten.lstm_cell": lstm_cell,
    "aten.gru_cell": _single_cell(gru_step),
    "aten.rnn_tanh_cell": _single_cell(_tanh_step),
    "aten.rnn_relu_cell": _single_cell(_relu_step),
    "monotile.packed_rnn": packed_rnn,
    "monotile.packed_lengths": packed_lengths,
}
