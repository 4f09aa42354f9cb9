"""The Program: a network as tensor expressions. The whole language is this page and `expr.py`.

Semantics
- A Program is straight-line: a statement sees the inputs, the weights and the definitions before it.
  Every Tensor name is defined exactly once in the whole Program, loop bodies included.
- Compute: out[axes] = combine over `reduce` of `body`. The combination runs in the body's type and is
  then cast to `out.dtype`; its order is not defined (sums of floats may differ in rounding). The
  axes' extents are `out.shape`. `argmax` and `argmin` give the row-major position among the reduce
  axes, the first of equals (NaN counts as the extreme); an empty reduction gives the
  combiner's identity. If `combiner` is None, `reduce` is empty.
- Live: a Compute may be bounded along axes: elements of `out` beyond are undefined, terms beyond are left
  out. The bounds are values of the call: scalars, 0 <= first < last <= extent, so one point at least is live; or one for each
  point, or run of points, of other axes of the Compute (`Live.at`), where nothing may be live (first = last). What is undefined is read only by Computes that are bounded alike, at the axis itself;
  or by one whose bounds all lie within a size (`Live.within`), where that much is defined.
- Scatter: `out` is `base` with out[index] = value for each point of `axes`, in row-major order, so the
  last write wins; with a combiner, out[index] = combine(out[index], value). Written in place if
  `base` is dead afterwards.
- Loop: `axis` runs over its extent, or, given `count` (a scalar int64 tensor), over the smaller of
  the two, or, given `predicate` (the `result` of a scalar bool carry), as long as that carry's
  current value holds and the extent is not reached. In iteration i the body sees each carry's
  `param`: `init` in the first, the last iteration's `result` later; after the loop `out` is the
  last `result` (`init` if there was no iteration). A Stack's `out[i]` is its `value` of iteration i.
- Branch: exactly one of two bodies runs; `outs` are its values of the taken side.
- A Weight is stored as `parts`, arrays of the caller, one for each index over the leading
  `table` dimensions (none: one part): layers rolled into a Loop read their weights through this
  table of pointers, without copies.
- A state is an input or a part of a weight that persists across calls, or, under the name of its tensor, a weight
  of several parts. In the whole Program it has its value from before the call; after the call its memory holds
  the output that is paired with it.
- A watched input is memory that the host uses while the Program runs. One that is no state is a scalar that the host may
  change: only a snapshot of it is read, a Compute `out = watched` and nothing else, which takes the value of the time at which it runs: anew in
  each iteration of the loops around it. Snapshots of one list of statements may be one. One that is a state is written and never loaded: Scatters, and
  loops, update it in place, and each element that they write is there for the host as soon as it is written, while
  the Program goes on; in which order several elements come is not defined.

- A size is a scalar int64 input, of which the launch has the value itself: how much of what has been laid out for the most there is in
  this call. An output may be partial: along dimensions with a size, elements beyond are undefined.

By convention a Compute's axes are named i0, i1, ... and its reduce axes r0, r1, ..., so that statements
of equal structure have equal bodies except for the tensors that they load.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Expr, Load, SizeTensor, Tensor, idx, loads


class Weight(msgspec.Struct, frozen=True):
    """shape = tensor.shape; its first `table` dimensions select one of `parts` (row-major). copied: a kernel may read copies of the parts in another
    order, which are made before a launch, and anew where the parts have changed."""

    tensor: Tensor
    parts: tuple[str, ...]
    table: int = 0
    copied: bool = False


Ends = tuple[Tensor | None, Tensor | None]


class At(msgspec.Struct, frozen=True, cache_hash=True):
    """The number of an aligned run of so many points of `axis`; the last one may be shorter."""

    axis: Axis
    run: int = 1

    @property
    def index(self) -> Expr:
        return self.axis if self.run == 1 else Binary("floordiv", self.axis, idx(self.run))

    @property
    def extent(self) -> int:
        return -(-self.axis.extent // self.run)


class Live(msgspec.Struct, frozen=True, cache_hash=True):
    """The points of `axis` from `first` on and before `last`, int64 tensors; None: from 0, to the extent. They are scalars, or
    have an element for each point of `at`, of axes that the Compute does not sum over. within: a size of the call that no `last` is beyond."""

    axis: Axis
    first: Tensor | None
    last: Tensor | None
    at: tuple[At, ...] = ()
    within: Tensor | None = None

    @property
    def ends(self) -> Ends:
        """What is the same along axes that are live alike."""
        return self.first, self.last

    @property
    def known(self) -> bool:
        """Whether its ends are sizes of the call, which nobody waits for."""
        return not self.at and all(t is None or isinstance(t, SizeTensor) for t in self.ends)

    @property
    def prefix(self) -> Tensor | None:
        """The scalar that says how much of the axis is live, from its start; None where none does."""
        return self.last if self.first is None and not self.at else None

    def part(self, index: Sequence[Expr]) -> "Part | None":
        """What it says of a dimension of a tensor that is read, or written, at `index`; where `at` is not among that, what is the same for all
        of them, None for nothing."""
        if not {x.axis for x in self.at} <= {i for i in index if isinstance(i, Axis)}:
            return None if self.within is None else Part((None, self.within))
        return Part(self.ends, tuple((index.index(x.axis), x.run) for x in self.at), self.within)


class Part(NamedTuple):
    """How much of a dimension of a tensor is defined. at: the dimensions, and their runs, which say which element of the ends counts. within: as
    of `Live`."""

    ends: Ends
    at: tuple[tuple[int, int], ...] = ()
    within: Tensor | None = None

    def behind(self, count: int) -> "Part":
        """The same where so many dimensions more are in front."""
        return Part(self.ends, tuple((p + count, run) for p, run in self.at), self.within)

    def along(self, axis: Axis, axes: Sequence[Axis]) -> Live:
        """The same of a Compute with these axes."""
        return Live(axis, *self.ends, tuple(At(axes[p], run) for p, run in self.at), self.within)


class Compute(msgspec.Struct, frozen=True, tag="compute", cache_hash=True):
    out: Tensor
    axes: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    combiner: str | None
    body: Expr
    origin: str = ""  # the user's source line
    live: tuple[Live, ...] = ()  # of its axes and reduce axes, each once at most

    def live_along(self, axis: Axis) -> Live | None:
        """What is live along one of its axes or reduce axes; None for all."""
        return next((x for x in self.live if x.axis == axis), None)


class Scatter(msgspec.Struct, frozen=True, tag="scatter", cache_hash=True):
    out: Tensor
    base: Tensor
    axes: tuple[Axis, ...]
    index: tuple[Expr, ...]
    value: Expr
    combiner: str | None = None
    origin: str = ""
    distinct: bool = (
        False  # no two points write one element, but for equal values beyond what is live
    )


class Carry(msgspec.Struct, frozen=True, cache_hash=True):
    """One carried value: four tensors of equal type."""

    init: Tensor
    param: Tensor
    result: Tensor
    out: Tensor


class Stack(msgspec.Struct, frozen=True, cache_hash=True):
    """out.shape = (axis.extent, *value.shape)."""

    value: Tensor
    out: Tensor


class Loop(msgspec.Struct, frozen=True, tag="loop", cache_hash=True):
    axis: Axis
    carried: tuple[Carry, ...]
    stacked: tuple[Stack, ...]
    body: tuple["Statement", ...]
    count: Tensor | None = None
    predicate: Tensor | None = None
    origin: str = ""

    @property
    def ends_early(self) -> bool:
        """Whether the number of iterations is known in the call only."""
        return self.count is not None or self.predicate is not None

    @property
    def looked_at(self) -> Tensor | None:
        """The predicate as an iteration begins: the `param` of its carry."""
        return next((c.param for c in self.carried if c.result == self.predicate), None)


class BranchOut(msgspec.Struct, frozen=True, cache_hash=True):
    then: Tensor
    otherwise: Tensor
    out: Tensor


class Branch(msgspec.Struct, frozen=True, tag="branch", cache_hash=True):
    predicate: Tensor  # scalar bool
    then: tuple["Statement", ...]
    otherwise: tuple["Statement", ...]
    outs: tuple[BranchOut, ...]
    origin: str = ""


Statement = Compute | Scatter | Loop | Branch


class Program(msgspec.Struct, frozen=True, cache_hash=True):
    """states: names of inputs, of weights' parts, and of weights in several parts, that are updated in place; the last outputs are their
    new values. watched: names of inputs that the host uses meanwhile. partial: of each output the size along
    each dimension, "" or nothing where all of it is defined; () for no size anywhere."""

    inputs: tuple[Tensor, ...]
    weights: tuple[Weight, ...]
    body: tuple[Statement, ...]
    outputs: tuple[Tensor, ...]
    states: tuple[str, ...] = ()
    watched: tuple[str, ...] = ()
    partial: tuple[tuple[str, ...], ...] = ()

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The outputs that are not new values of states."""
        return self.outputs[: len(self.outputs) - len(self.states)]

    def defined_along(self, output: int) -> tuple[str, ...]:
        """The size along each dimension of an output, by number; "" where all of it is defined."""
        known = self.partial[output] if self.partial else ()
        return known or ("",) * len(self.outputs[output].shape)

    @property
    def by_value(self) -> frozenset[str]:
        """The names of the inputs that are sizes."""
        return frozenset(t.name for t in self.inputs if isinstance(t, SizeTensor))

    @property
    def changing(self) -> frozenset[str]:
        """The watched inputs that the host may change."""
        return frozenset(self.watched).difference(self.states)


class Update(msgspec.Struct, frozen=True):
    """The state `name`: `result` is its new value, `old` are the tensors that hold its old value."""

    name: str
    result: Tensor
    old: tuple[Tensor, ...]


def updates(program: Program) -> tuple[Update, ...]:
    """The Updates of all states, in order."""
    new = program.outputs[len(program.outputs) - len(program.states) :]
    return tuple(
        Update(name, result, tuple(_holding(program, name)))
        for name, result in zip(program.states, new, strict=True)
    )


def _holding(program: Program, name: str) -> Iterator[Tensor]:
    yield from (t for t in program.inputs if t.name == name)
    yield from (w.tensor for w in program.weights if name in (*w.parts, w.tensor.name))


def state_names(program: Program) -> tuple[str, ...]:
    """The inputs and weights' parts that are states."""
    parts = {w.tensor.name: w.parts for w in program.weights}
    return tuple(n for name in program.states for n in parts.get(name, (name,)))


def compute(
    out: Tensor,
    body: Callable[..., Expr],
    *,
    reduce: tuple[int, ...] = (),
    combiner: str | None = None,
    origin: str = "",
) -> Compute:
    """A Compute with axes in canonical names; `body` is called with the axes, then the reduce axes."""
    axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(out.shape))
    inner = tuple(Axis(f"r{k}", n) for k, n in enumerate(reduce))
    return Compute(out, axes, inner, combiner, body(*axes, *inner), origin)


def is_snapshot(s: Statement, changing: frozenset[str]) -> bool:
    """Whether `s` takes the value that one of the inputs `changing` has when it runs."""
    return isinstance(s, Compute) and isinstance(s.body, Load) and s.body.tensor.name in changing


def value_of(s: Compute | Scatter) -> Expr:
    """The expression that is computed at a point of its axes."""
    return s.body if isinstance(s, Compute) else s.value


def expressions(s: Compute | Scatter) -> tuple[Expr, ...]:
    """That, and where it goes if data says so."""
    return (s.body,) if isinstance(s, Compute) else (*s.index, s.value)


def defined(s: Statement) -> tuple[Tensor, ...]:
    """The tensors that `s` defines for the statements after it."""
    match s:
        case Compute() | Scatter():
            return (s.out,)
        case Loop():
            return tuple(c.out for c in s.carried) + tuple(k.out for k in s.stacked)
        case Branch():
            return tuple(o.out for o in s.outs)


def used(s: Statement) -> tuple[Tensor, ...]:
    """The tensors that `s` reads, in order and with repetition; for a Loop or Branch only those from outside."""
    match s:
        case Compute():
            return (*(x.tensor for x in loads(s.body)), *ends_of(s))
        case Scatter():
            inner = tuple(x.tensor for e in (*s.index, s.value) for x in loads(e))
            return (s.base, *inner)
        case Loop():
            own = {c.param for c in s.carried}
            ahead = [c.init for c in s.carried] + ([s.count] if s.count else [])
            results = [c.result for c in s.carried] + [k.value for k in s.stacked]
            return (*ahead, *_free(s.body, results, own))
        case Branch():
            sides = (
                *_free(s.then, [o.then for o in s.outs], set()),
                *_free(s.otherwise, [o.otherwise for o in s.outs], set()),
            )
            return (s.predicate, *sides)


def ends_of(s: Compute) -> tuple[Tensor, ...]:
    """What bounds it, in order and with repetition."""
    return tuple(t for x in s.live for t in (*x.ends, x.within) if t is not None)


def parts_of(s: Compute) -> tuple[Part | None, ...]:
    """How much of each dimension of its result is defined; None for all."""
    return tuple(x.part(s.axes) if (x := s.live_along(a)) else None for a in s.axes)


def looked_at(s: Statement) -> tuple[Tensor, ...]:
    """The scalars that decide whether a Loop goes on, as each iteration begins, or which side of a Branch runs."""
    match s:
        case Compute() | Scatter():
            return ()
        case Loop():
            return tuple(t for t in (s.count, s.looked_at) if t is not None)
        case Branch():
            return (s.predicate,)


def wholes(s: Statement) -> tuple[Tensor, ...]:
    """The tensors that `s` itself uses other than by a Load, inside its bodies too."""
    match s:
        case Compute():
            return ()
        case Scatter():
            return (s.base,)
        case Loop():
            carried = (t for c in s.carried for t in (c.init, c.result))
            ends = (t for t in (s.count, s.predicate) if t is not None)
            return (*carried, *(k.value for k in s.stacked), *ends)
        case Branch():
            return (s.predicate, *(t for o in s.outs for t in (o.then, o.otherwise)))


def _free(body: tuple[Statement, ...], results: list[Tensor], own: set[Tensor]) -> Iterator[Tensor]:
    known = set(own)
    for s in body:
        yield from (t for t in used(s) if t not in known)
        known.update(defined(s))
    yield from (t for t in results if t not in known)


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement; those in bodies after the Loop or Branch itself."""
    for s in body:
        yield s
        match s:
            case Loop():
                yield from statements(s.body)
            case Branch():
                yield from statements(s.then)
                yield from statements(s.otherwise)
            case _:
                pass


def scalar(name: str, dtype: DType) -> Tensor:
    return Tensor(name, (), dtype)
