"""The coordinates of all dimensions that do not affect a result.

The forward sweep computes what is known of each tensor along each of its dimensions. The backward sweep computes which coordinates are
read by products whose other factor is not known to be zero, and which terms of a sum are. Each sweep shrinks the other's sets, so they
alternate until nothing changes. Knowledge about a coordinate is kept once it is dead, and nothing more is concluded about it. So all
results also hold if some dead coordinates stay.
"""

import numpy as np

from monotile.analysis.pruning.classes import fixed_tensors
from monotile.analysis.pruning.coordinates import Live, reached
from monotile.analysis.pruning.factors import Dimension, Factors, axes_by_name, under
from monotile.analysis.pruning.facts import Facts, Mask, Zeros
from monotile.analysis.pruning.known import Along, Known, merged, nothing, reduced
from monotile.ir.expr import Axis, Binary, Expr, Load, Select, Tensor, axes_of, children
from monotile.ir.program import Compute, Program

ROUNDS = 24


class Sweeps:
    """live: the coordinates of each dimension, and of each reduction axis, that are not dead."""

    def __init__(self, program: Program, factors: Factors, facts: Facts) -> None:
        self._factors = factors
        parts = {w.tensor.name: w.parts[0] for w in program.weights if not w.table}
        steady = facts.keys() - {*program.states}  # zeros of a state may change
        self._zeros = {t: facts[p] for t, p in parts.items() if p in steady}
        self._masks: dict[tuple[str, int, bytes], Known] = {}
        self._known: dict[Dimension, Known] = {}
        self._fixed = fixed_tensors(program)
        self.live: dict[Dimension, Mask] = {d: np.ones(n, bool) for d, n in factors.extents.items()}
        for _ in range(ROUNDS):
            self._forward()
            if not self._backward():
                break

    # What is known of tensors: `known.Source`.

    def silent(self, tensor: Tensor) -> bool:
        mine = tensor.name in self._zeros
        return not mine and all(
            (tensor.name, d) not in self._known for d in range(len(tensor.shape))
        )

    def known(self, load: Load, d: int, live: Live) -> Known | None:
        t = load.tensor
        zeros = self._zeros.get(t.name)
        if zeros is None:
            return self._known.get((t.name, d))
        others = [
            None if k == d else reached(i, n, live)
            for k, (i, n) in enumerate(zip(load.index, t.shape, strict=True))
        ]
        key = (t.name, d, b"".join(b"" if m is None else np.packbits(m).tobytes() for m in others))
        if key not in self._masks:
            self._masks[key] = _along(zeros, t, d, others)
        return self._masks[key]

    def live_of(self, s: Compute) -> dict[str, Mask]:
        return {name: self.live[d] for name, (_, d) in axes_by_name(s).items()}

    def _forward(self) -> None:
        for s in self._factors.computes:
            live = self.live_of(s)
            empty = any(not live[r.name].any() for r in s.reduce)
            read = _tensors(s.body)
            if not empty and read and all(self.silent(t) for t in read):
                continue
            for k, a in enumerate(s.axes):
                if empty:
                    now = nothing(a.extent, s.out.dtype)
                    now = Known(np.full(a.extent, s.combiner == "sum"), now.value)
                else:
                    now = reduced(s.combiner, Along(a, live, self).of(s.body), s.out.dtype)
                d = (s.out.name, k)
                before = self._known.get(d, nothing(a.extent, s.out.dtype))
                now = merged(before, now, self.live[d])
                if now.where.any():
                    self._known[d] = now

    def _backward(self) -> bool:
        """Whether a coordinate became dead."""
        needed = {d: np.zeros(n, bool) for d, n in self._factors.extents.items()}
        for s in reversed(self._factors.computes):
            self._terms(s, needed)
        changed = False
        for d, mask in self.live.items():
            now = mask & needed[d]
            changed |= bool((now != mask).any())
            self.live[d] = now
        return changed

    def _terms(self, s: Compute, needed: dict[Dimension, Mask]) -> None:
        """The reads of the live elements of `s`."""
        axes = axes_by_name(s)
        live = self.live_of(s)
        for k, a in enumerate(s.axes):
            d = s.out.name, k
            if s.out.name in self._fixed:
                needed[d][:] = True
            live[a.name] = live[a.name] & needed[d]
        if not all(live[a.name].any() for a in s.axes):
            return
        for r in s.reduce:
            d = axes[r.name][1]
            if s.combiner == "sum":
                live[r.name] = live[r.name] & ~Along(r, live, self).of(s.body).zero
            needed[d] |= live[r.name]
        if all(live[r.name].any() for r in s.reduce):
            self._demand(s.body, live, needed)

    def _demand(self, e: Expr, live: Live, needed: dict[Dimension, Mask]) -> None:
        match e:
            case Load(tensor, index):
                for d, i in enumerate(index):
                    dim = tensor.name, d
                    if dim in needed:
                        needed[dim] |= reached(i, tensor.shape[d], live)
                    self._demand(i, live, needed)
            case Binary("mul", a, b) if e.dtype.is_float:
                # Where both are zero, the first counts as read.
                beside = self._without(live, b, None)
                self._demand(a, beside, needed)
                self._demand(b, self._without(live, a, b), needed)
            case Select(cond, then, otherwise):
                self._demand(cond, live, needed)
                self._demand(then, _taken(live, cond, holds=True), needed)
                self._demand(otherwise, _taken(live, cond, holds=False), needed)
            case _:
                for x in children(e):
                    self._demand(x, live, needed)

    def _without(self, live: Live, zero: Expr, unless: Expr | None) -> dict[str, Mask]:
        """`live` without coordinates where `zero` is 0, unless the other factor is zero as well."""
        out = dict(live)
        if all(self.silent(t) for t in _tensors(zero)):
            return out
        for name, mask in live.items():
            axis = Axis(name, len(mask))
            if axis in axes_of(zero):
                gone = Along(axis, live, self).of(zero).zero
                if unless is not None:
                    gone &= ~Along(axis, live, self).of(unless).zero
                out[name] = mask & ~gone
        return out


def _taken(live: Live, cond: Expr, *, holds: bool) -> Live:
    """Where a condition on axes holds, or does not."""
    out = dict(live)
    for name, (low, high) in under(cond, {}, holds=holds).items():
        if name in out:
            at = np.arange(len(out[name]))
            out[name] = out[name] & (at >= low) & (at <= high)
    return out


def _along(zeros: Zeros, t: Tensor, d: int, others: list[Mask | None]) -> Known:
    """Where a parameter is zero, or the value of a vector, along a dimension, at given coordinates of the others."""
    if zeros.values and t.shape[d] == len(zeros.values):
        value = zeros.vector
        return Known(~np.isnan(value), np.nan_to_num(value).astype(t.dtype.numpy))
    mask = zeros.mask
    for k, at in enumerate(others):
        if at is not None and not at.all():
            mask = np.compress(at, mask, axis=k)
    where = np.asarray(mask.all(tuple(k for k in range(mask.ndim) if k != d)))
    if mask.size == 0:
        where = np.zeros(t.shape[d], bool)
    return Known(where, np.zeros(t.shape[d], t.dtype.numpy))


def _tensors(e: Expr) -> list[Tensor]:
    match e:
        case Load():
            return [e.tensor]
        case _:
            return [t for x in children(e) for t in _tensors(x)]
