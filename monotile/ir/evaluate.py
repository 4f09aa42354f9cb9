"""The reference evaluator: the meaning of a Program, in NumPy. Slow and simple; everything is tested against it.

A body is evaluated over the whole grid of its axes at once, by broadcasting; a grid that is too
large for memory is split into blocks of the output.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from monotile.errors import InputError, VerificationError
from monotile.ir import scalar
from monotile.ir.body import Body, grid, lookup
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis
from monotile.ir.program import (
    Branch,
    Compute,
    Live,
    Loop,
    Program,
    Scatter,
    Statement,
    Weight,
)
from monotile.ir.scalar import Array

GRID_LIMIT = 1 << 22  # elements of a grid that are evaluated at once


def evaluate(program: Program, values: Mapping[str, Array]) -> tuple[Array, ...]:
    """The outputs of `program`; the last ones are the new values of its states.

    values: arrays by name: every input tensor and every part of every weight. A watched input's array may change meanwhile.
    A Stack is zero for iterations that did not run.
    Raises InputError for a missing or ill-shaped value, IndexOutOfRangeError for an index computed
    from data that is out of range, VerificationError for an invalid Program.
    """
    env = {t.name: _value(values, t.name, t.shape, t.dtype) for t in program.inputs}
    env |= {w.tensor.name: _weight(values, w) for w in program.weights}
    _run(program.body, env, {})
    return tuple(lookup(env, t) for t in program.outputs)


def _value(values: Mapping[str, Array], name: str, shape: tuple[int, ...], dtype: DType) -> Array:
    if name not in values:
        raise InputError(f"no value for {name!r}")
    x = np.asarray(values[name])
    if x.shape != shape or x.dtype != dtype.numpy:
        raise InputError(f"{name!r} should be {dtype}{shape}, got {x.dtype}{x.shape}")
    return x


def _weight(values: Mapping[str, Array], w: Weight) -> Array:
    inner = w.tensor.shape[w.table :]
    parts = [_value(values, p, inner, w.tensor.dtype) for p in w.parts]
    return (
        parts[0].reshape(w.tensor.shape)
        if len(parts) == 1
        else np.stack(parts).reshape(w.tensor.shape)
    )


def _run(body: Sequence[Statement], env: dict[str, Array], axes: Mapping[str, Array]) -> None:
    """Runs `body` and adds its definitions to `env`; `axes` has the values of the enclosing loops."""
    for s in body:
        match s:
            case Compute():
                env[s.out.name] = _compute(s, env, axes)
            case Scatter():
                env[s.out.name] = _scatter(s, env, axes)
            case Loop():
                _loop(s, env, axes)
            case Branch():
                taken = bool(lookup(env, s.predicate))
                inner = dict(env)
                _run(s.then if taken else s.otherwise, inner, axes)
                for o in s.outs:
                    env[o.out.name] = lookup(inner, o.then if taken else o.otherwise)


def _loop(s: Loop, env: dict[str, Array], axes: Mapping[str, Array]) -> None:
    trips = s.axis.extent
    if s.count is not None:
        trips = max(0, min(trips, int(lookup(env, s.count))))
    state = [lookup(env, c.init) for c in s.carried]
    stacks = [np.zeros(k.out.shape, k.out.dtype.numpy) for k in s.stacked]
    holds = [
        k for k, c in enumerate(s.carried) if s.predicate is not None and c.result == s.predicate
    ]
    for i in range(trips):
        if s.predicate is not None and not all(bool(state[k]) for k in holds):
            break
        inner = dict(env)
        inner |= {c.param.name: x for c, x in zip(s.carried, state, strict=True)}
        _run(s.body, inner, {**axes, s.axis.name: np.asarray(i, np.int64)})
        for k, stack in zip(s.stacked, stacks, strict=True):
            stack[i] = lookup(inner, k.value)
        state = [lookup(inner, c.result) for c in s.carried]
    env.update({c.out.name: x for c, x in zip(s.carried, state, strict=True)})
    env.update({k.out.name: x for k, x in zip(s.stacked, stacks, strict=True)})


def _blocks(extents: Sequence[int], inner: int) -> Iterator[tuple[slice, ...]]:
    """Boxes that cover `extents`, each of at most GRID_LIMIT / inner elements where possible."""

    def cut(box: tuple[slice, ...]) -> Iterator[tuple[slice, ...]]:
        sizes = [s.stop - s.start for s in box]
        longest = max(range(len(box)), key=sizes.__getitem__, default=None)
        if longest is None or sizes[longest] <= 1 or int(np.prod(sizes)) * inner <= GRID_LIMIT:
            yield box
            return
        s = box[longest]
        middle = (s.start + s.stop) // 2
        for part in (slice(s.start, middle), slice(middle, s.stop)):
            yield from cut((*box[:longest], part, *box[longest + 1 :]))

    yield from cut(tuple(slice(0, n) for n in extents))


def _compute(s: Compute, env: Mapping[str, Array], loops: Mapping[str, Array]) -> Array:
    out = np.full(s.out.shape, _undefined(s.out.dtype), s.out.dtype.numpy)
    reduced = tuple(a.extent for a in s.reduce)
    inner = tuple(slice(0, n) for n in reduced)
    for box in _boxes(s, int(np.prod(reduced))):
        at = {a: part.start for a, part in zip(s.axes, box, strict=True)}
        shape = tuple(part.stop - part.start for part in box) + reduced
        if 0 in shape[: len(box)]:
            continue
        if s.combiner is not None and 0 in reduced:
            found = scalar.reduce(s.combiner, np.empty(shape), len(reduced), s.body.dtype)
        else:
            points = grid((*s.axes, *s.reduce), (*box, *inner), loops)
            found = np.broadcast_to(Body(env, points, s.origin).value(s.body, None), shape)
            if s.combiner is not None:
                terms = _span(s.reduce, s.live, env, at)
                found = scalar.reduce(s.combiner, found[..., *terms], len(reduced), s.body.dtype)
        inside = [
            slice(max(a.start, b.start), max(a.start, b.start, min(a.stop, b.stop)))
            for a, b in zip(_span(s.axes, s.live, env, at), box, strict=True)
        ]
        here = [
            slice(a.start - b.start, a.stop - b.start) for a, b in zip(inside, box, strict=True)
        ]
        out[tuple(inside)] = scalar.convert(found, s.out.dtype)[tuple(here)]
    return out


def _boxes(s: Compute, inner: int) -> Iterator[tuple[slice, ...]]:
    """The boxes of `s`: one for each point of axes that its bounds depend on."""
    single = {a.axis for x in s.live for a in x.at}
    for box in _blocks(s.out.shape, inner):
        ways = (
            [slice(i, i + 1) for i in range(part.start, part.stop)] if a in single else [part]
            for a, part in zip(s.axes, box, strict=True)
        )
        yield from itertools.product(*ways)


def _span(
    axes: Sequence[Axis], live: Sequence[Live], env: Mapping[str, Array], at: Mapping[Axis, int]
) -> tuple[slice, ...]:
    """The live part of each axis. at: where a box begins."""
    out: list[slice] = []
    for a in axes:
        x = next((x for x in live if x.axis == a), None)
        point = () if x is None else tuple(at[y.axis] // y.run for y in x.at)
        first = 0 if x is None or x.first is None else int(lookup(env, x.first)[point])
        last = a.extent if x is None or x.last is None else int(lookup(env, x.last)[point])
        some = first < last or (bool(point) and first == last)
        most = a.extent if x is None or x.within is None else int(lookup(env, x.within)[()])
        if not (0 <= first <= last <= most and some) and a.extent:
            raise VerificationError(f"axis {a.name!r} of {a.extent} is live from {first} to {last}")
        out.append(slice(first, last))
    return tuple(out)


def _undefined(dtype: DType) -> float | int | bool:
    """What shows where it is read."""
    return float("nan") if dtype.is_float else True if dtype is DType.BOOL else 77


def _scatter(s: Scatter, env: Mapping[str, Array], loops: Mapping[str, Array]) -> Array:
    base = lookup(env, s.base)
    shape = tuple(a.extent for a in s.axes)
    if 0 in shape:
        return base
    body = Body(env, grid(s.axes, [slice(0, n) for n in shape], loops), s.origin)
    value = np.broadcast_to(scalar.convert(body.value(s.value, None), s.out.dtype), shape)
    where = [
        np.broadcast_to(body.index(e, n, None, s.out.name), shape).reshape(-1)
        for e, n in zip(s.index, s.out.shape, strict=True)
    ]
    # In a type for partial sums; flat and in row-major order, so that the last write wins.
    wide = base.astype(s.out.dtype.compute.numpy)
    flat = value.reshape(-1).astype(wide.dtype)
    if s.combiner is None:
        wide[tuple(where)] = flat if where else flat[-1]
        if s.distinct and not np.array_equal(wide[tuple(where)], flat, equal_nan=True):
            raise VerificationError(f"two writes of {s.out.name} are to one element")
    else:
        scalar.combine_at(s.combiner, wide, tuple(where), flat)
    return scalar.convert(wide, s.out.dtype)
