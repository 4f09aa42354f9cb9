"""Pads the slices of intermediate rows to whole vectors (CUDA).

A product of 254 columns, of which a gate multiplies the first 127 with the others, or of 387, which are queries, contexts and three gates:
no row and no slice begins at a vector, so all that reads or writes them moves single elements. The rows become longer, with each slice at
the next vector, and with them all tensors that lie in the same columns: a product before its bias, a depthwise convolution. What is in
the columns between is read by nobody. Weights that are read by column are copied in this form first.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping
from math import prod

import msgspec

from monotile.analysis.affine import Affine, affine, bounds
from monotile.analysis.dependence import loads_of
from monotile.analysis.windows import windows_of
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    Select,
    Tensor,
    axes_of,
    const,
    idx,
    loads,
    map_loads,
)
from monotile.ir.program import Compute, Program, Scatter, Statement, compute, statements
from monotile.targets.target import Target
from monotile.transform.layout.intermediates import intermediates, tied
from monotile.transform.layout.padding import with_copies
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, map_exprs, with_body

LARGE = 1 << 18  # bytes of a tensor from which on padding pays
MOST = 4 / 3  # tolerated increase of a row
SLICES = 8  # at most


class Columns(msgspec.Struct, frozen=True):
    """The slices of a row: where each begins and ends, and where it begins in the longer row, of `extent` elements."""

    slices: tuple[tuple[int, int], ...]
    places: tuple[int, ...]
    extent: int

    @property
    def width(self) -> int:
        return self.slices[-1][1]

    def moved(self, e: Expr) -> Expr:
        """The index in the longer row, of elements of one slice."""
        low, _ = bounds(affine(e)) or (0, 0)
        by = next(p - b for (b, end), p in zip(self.slices, self.places, strict=True) if low < end)
        return (affine(e) + Affine((), by)).expr if by else e


Groups = Mapping[str, Columns]  # by the tensor's name


def pad_slices(program: Program, target: Target) -> Program:
    """`program` with such rows padded."""
    groups = _groups(program, target)
    return _Padding(program, groups).program if groups else program


def _groups(program: Program, target: Target) -> Groups:
    out: dict[str, Columns] = {}
    found = _Finder(program)
    for s in statements(program.body):
        if isinstance(s, Compute) and s.axes and s.out.nbytes >= LARGE and s.out.name not in out:
            members = found.together(s.out)
            columns = _columns(members, target) if members is not None else None
            if members is not None and columns is not None:
                names = {t.name for t in members.tensors}
                # Of groups that meet, the first: others are copied where it reads them.
                out |= {} if names & out.keys() else dict.fromkeys(names, columns)
    return out


class Members(msgspec.Struct, frozen=True):
    """Tensors that lie in the same columns. spans: the slices that others read of them. depthwise: a depthwise convolution is one of them."""

    tensors: tuple[Tensor, ...]
    spans: frozenset[tuple[int, int]]
    depthwise: bool


def _columns(m: Members, target: Target) -> Columns | None:
    """The slices of these rows; None if they are vectors as they are, cannot be, or are whole rows without windows: in such, element-wise
    statements have vectors across the ends of rows."""
    lanes = target.vector_bytes // min(t.dtype.itemsize for t in m.tensors)
    width = m.tensors[0].shape[-1]
    ends = sorted({0, width, *(e for span in m.spans if span[1] - span[0] >= lanes for e in span)})
    slices = tuple(itertools.pairwise(ends))
    whole = all(any(b <= low and high <= e for b, e in slices) for low, high in m.spans)
    if not whole or len(slices) > SLICES or all(e % lanes == 0 for e in ends):
        return None
    if len(slices) == 1 and not m.depthwise:
        return None
    places = [0]
    for begin, end in slices:
        places.append(places[-1] + -(-(end - begin) // lanes) * lanes)
    extent = places.pop()
    return Columns(slices, (*places,), extent) if extent <= MOST * width else None


class _Finder:
    """Which tensors of a Program lie in the same columns."""

    def __init__(self, program: Program) -> None:
        held = {t.name for group in tied(program) for t, _ in group} | {*program.watched}
        self.free = intermediates(program).keys() - held
        self.made = {s.out.name: s for s in statements(program.body) if isinstance(s, Compute)}
        self.windows = windows_of(program)
        self.readers = defaultdict[str, list[Compute | Scatter]](list)
        for s in statements(program.body):
            if isinstance(s, (Compute, Scatter)):
                for name in {x.tensor.name for x in loads_of(s)}:
                    self.readers[name].append(s)

    def together(self, t: Tensor) -> Members | None:
        """All that have to be padded with `t`; None if one of them cannot be."""
        found, pending, spans = dict[str, Tensor](), [t], set[tuple[int, int]]()
        while pending:
            x = pending.pop()
            if x.name in found:
                continue
            found[x.name] = x
            read, below = self._read(x), self._below(x, t)
            if read is None or below is None:
                return None
            pending += below + read[0]
            spans |= read[1]
        depthwise = any(n in self.windows and self.windows[n].depthwise for n in found)
        return Members((*found.values(),), frozenset(spans), depthwise)

    def _below(self, x: Tensor, t: Tensor) -> list[Tensor] | None:
        """What `x` is computed from in the same columns, but for what is less than `t`, and can be copied."""
        s = self.made.get(x.name)
        if x.name not in self.free or s is None or s.live or x.shape[-1] != t.shape[-1]:
            return None
        last, out = s.axes[-1], list[Tensor]()
        if last in axes_of(map_loads(s.body, lambda y: const(0, y.dtype))):
            return None
        for y in loads(s.body):
            if last not in axes_of(y):
                continue
            d = _dimension(y, last)
            if d is None:
                return None
            walked = zip(y.index, y.tensor.shape, strict=True)
            if prod(n for i, n in walked if axes_of(i) & {*s.axes, *s.reduce}) > t.size:
                if d != len(y.index) - 1:
                    return None
                out.append(y.tensor)
        return out

    def _read(self, x: Tensor) -> tuple[list[Tensor], set[tuple[int, int]]] | None:
        """What reads `x` in the same columns, and the slices that others read."""
        out, spans = list[Tensor](), set[tuple[int, int]]()
        for s in self.readers[x.name]:
            for y in loads_of(s):
                if y.tensor.name != x.name:
                    continue
                place = y.index[-1]
                if isinstance(s, Compute) and s.axes[-1:] == (place,) and s.axes[-1].extent == x.shape[-1]:  # fmt: skip
                    out.append(s.out)
                elif loads(place) or (ends := bounds(affine(place))) is None:
                    return None
                else:
                    spans.add((ends[0], ends[1] + 1))
        return out, spans


def _dimension(x: Load, along: Axis) -> int | None:
    """The dimension of `x` that `along` walks, alone and whole."""
    found = [d for d, i in enumerate(x.index) if along in axes_of(i)]
    alone = len(found) == 1 and x.index[found[0]] == along
    return found[0] if alone and x.tensor.shape[found[0]] == along.extent else None


class _Padding:
    """`program` with padded rows. made: the padded copies, by what is copied and its dimension."""

    def __init__(self, program: Program, groups: Groups) -> None:
        self.groups, self.names = groups, Names(program)
        self.made: dict[tuple[Tensor, int, Columns], Compute] = {}
        body = with_body(program, self._body(program.body))
        self.program = with_copies(body, [(t, c) for (t, _, _), c in self.made.items()])

    def _body(self, body: Body) -> Body:
        return tuple(self._statement(map_bodies(s, self._body)) for s in body)

    def _statement(self, s: Statement) -> Statement:
        columns = self.groups.get(s.out.name) if isinstance(s, Compute) else None
        if columns is None or not isinstance(s, Compute):
            return map_exprs(s, lambda e: map_loads(e, self._slice))
        *rest, last = s.axes
        longer = Axis(last.name, columns.extent)

        def read(x: Load) -> Expr:
            if last not in axes_of(x):
                return self._slice(x)
            index = tuple(longer if i == last else i for i in x.index)
            if x.tensor.name in self.groups:
                return Load(_longer(x.tensor, columns), index)
            d = x.index.index(last)
            return Load(self._copy(x.tensor, d, columns).out, index)

        body = map_loads(s.body, read)
        return msgspec.structs.replace(s, out=_longer(s.out, columns), axes=(*rest, longer), body=body)  # fmt: skip

    def _slice(self, x: Load) -> Load:
        columns = self.groups.get(x.tensor.name)
        if columns is None:
            return x
        return Load(_longer(x.tensor, columns), (*x.index[:-1], columns.moved(x.index[-1])))

    def _copy(self, t: Tensor, d: int, columns: Columns) -> Compute:
        """`t` with dimension d padded as the columns are."""
        key = t, d, columns
        if key not in self.made:
            shape = (*t.shape[:d], columns.extent, *t.shape[d + 1 :])
            out = Tensor(self.names.fresh(f"{t.name}_padded"), shape, t.dtype)

            def body(*i: Expr) -> Expr:
                return _spread(columns, i[d], lambda e: Load(t, (*i[:d], e, *i[d + 1 :])))

            self.made[key] = compute(out, body)
        return self.made[key]


def _spread(columns: Columns, at: Expr, read: Callable[[Expr], Expr]) -> Expr:
    """What a longer row has at `at`: what `read` gives at the index in the row itself, or zero."""
    out: Expr = const(0.0, DType.F32)
    following = columns.extent
    for (begin, end), place in reversed([*zip(columns.slices, columns.places, strict=True)]):
        x = read((affine(at) + Affine((), begin - place)).expr if begin != place else at)
        inside = Binary("lt", at, idx(place + end - begin))
        here = Select(inside, x, const(0.0, x.dtype))
        last = following == columns.extent
        out = here if last else Select(Binary("lt", at, idx(following)), here, out)
        following = place
    return out


def _longer(t: Tensor, columns: Columns) -> Tensor:
    return msgspec.structs.replace(t, shape=(*t.shape[:-1], columns.extent))
