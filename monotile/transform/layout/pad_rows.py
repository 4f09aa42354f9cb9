"""Pads rows of product operands with zeros where the rows are not whole vectors (CUDA).

A row of 845 elements of 16 bits does not begin on a vector boundary, so no asynchronous copy can move it, and each element is stored on
chip by itself. With 848 elements all are copied in vectors. The sum runs over the zeros as well, and both operands have zeros there, so
that no infinity is multiplied by zero. An intermediate tensor is computed with longer rows, and its other readers keep their columns;
other tensors are copied.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from monotile.analysis.contraction import contraction
from monotile.analysis.ends import segment_ends
from monotile.analysis.masked import masked
from monotile.analysis.uses import Uses
from monotile.ir.expr import Axis, Expr, Load, Tensor, axes_of, loads, map_loads, substitute
from monotile.ir.program import Compute, Loop, Program, Statement, compute, defined, statements
from monotile.transform.layout.intermediates import intermediates
from monotile.transform.layout.odd_rows import OddProduct, Rows, tied_with, ties_of
from monotile.transform.layout.padding import below, padded_copy
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, map_carried, map_exprs, with_body

ZEROS = ("sum", "max", "min")  # combiners that give zero for zeros


def pad_rows(program: Program, odd: Sequence[OddProduct]) -> Program:
    """`program` with the products `odd` reading longer rows."""
    padding = _Padding(program, odd)
    held = (*(t for t in program.inputs), *(w.tensor for w in program.weights))
    return with_body(program, (*padding.copied(held), *padding.body(program.body)))


class _Padding:
    """How rows become longer. extents: of the last dimension of tensors that are computed longer. products: those that read longer rows.
    wide: products, and sums of each row's own terms, whose epilogue has longer rows. made: padded copies of tensors that stay
    unchanged; copies: the same by the tensor copied."""

    def __init__(self, program: Program, odd: Sequence[OddProduct]) -> None:
        self.names = Names(program)
        self.products = {p.name: p for p in odd}
        self.extents = _longer(program, odd)
        self.made: dict[Rows, Tensor] = {}
        self.copies = defaultdict[str, list[Compute]](list)
        wanted = dict.fromkeys(rows for p in odd for rows in p.rows.values())
        for rows in (*wanted, *self._begun(program)):
            longer = self.extents.get(rows.tensor.name) == rows.extent and rows.is_last
            if not longer and rows not in self.made:
                self._copy(rows)
        self.wide = _widened(program, self.extents)
        self.extents |= self.wide

    def _begun(self, program: Program) -> list[Rows]:
        """The caller's tensors, and initial values of loops, with which loops begin that carry longer rows."""
        found = [c for s in statements(program.body) if isinstance(s, Loop) for c in s.carried]
        return [
            Rows(c.init, len(c.init.shape) - 1, self.extents[c.param.name])
            for c in found
            if c.param.name in self.extents and c.init.name not in self.extents
        ]

    def _copy(self, rows: Rows) -> None:
        t, d = rows.tensor, rows.dim
        order = (*(k for k in range(len(t.shape)) if k != d), d)
        more = {d: rows.extent} if rows.extent != t.shape[d] else dict[int, int]()
        made = padded_copy(t, self.names.fresh(f"{t.name}_rows"), order, more)
        self.made[rows] = made.out
        self.copies[t.name].append(made)

    def copied(self, tensors: Iterable[Tensor]) -> Body:
        """The copies of these."""
        every = (c for t in tensors for c in self.copies.get(t.name, ()))
        return tuple(msgspec.structs.replace(c, body=map_loads(c.body, self._read)) for c in every)

    def body(self, body: Body) -> Body:
        """These statements, with copies after those that compute the copied tensors."""
        out: list[Statement] = []
        for s in body:
            s = map_bodies(s, self.body)
            if isinstance(s, Loop):
                out.append(self._loop(s))
            elif isinstance(s, Compute):
                out += self._compute(s)
            else:
                out.append(map_exprs(s, lambda e: map_loads(e, self._read)))
            out += self.copied(defined(s))
        return tuple(out)

    def _loop(self, s: Loop) -> Loop:
        begun = {c.init.name: self.extents.get(c.param.name) for c in s.carried}
        copies = self.copied(c.param for c in s.carried)
        s = msgspec.structs.replace(s, body=(*copies, *s.body)) if copies else s

        def now(t: Tensor) -> Tensor:
            extent = begun.get(t.name)
            if extent is not None and t.name not in self.extents:
                return self.made[Rows(t, len(t.shape) - 1, extent)]
            return self._now(t)

        return map_carried(s, now)

    def _now(self, t: Tensor) -> Tensor:
        extent = self.extents.get(t.name)
        return t if extent is None else _lengthened(t, extent)

    def _read(self, x: Load) -> Load:
        now = self._now(x.tensor)
        return x if now is x.tensor else Load(now, x.index)

    def _compute(self, s: Compute) -> Body:
        product = self.products.get(s.out.name)
        s = _read(s, self._read) if product is None else self._multiplied(s, product)
        extent = self.extents.get(s.out.name)
        if extent is None:
            return (s,)
        out = _lengthened(s.out, extent)
        if s.out.name in self.wide:
            return (_padded(s, out) if segment_ends(s) else _wide(s, out),)
        if contraction(s) is None:
            return (_padded(s, out),)
        between = msgspec.structs.replace(
            out, name=self.names.fresh(f"{s.out.name}_wide"), dtype=s.body.dtype
        )
        each = compute(out, lambda *i: Load(between, i), origin=s.origin)
        *_, last = each.axes
        kept = below(each.body, last, s.out.shape[-1])
        return (_wide(s, between), msgspec.structs.replace(each, body=kept))

    def _multiplied(self, s: Compute, p: OddProduct) -> Compute:
        """A product, over the longer axis."""
        rows, along = p.rows, Axis(p.axis.name, p.extent)

        def read(x: Load) -> Expr:
            wanted = rows.get(x)
            index = tuple(substitute(i, {along.name: along}) for i in x.index)
            if wanted is None or wanted not in self.made:
                x = self._read(Load(x.tensor, index))
            else:
                d = wanted.dim
                x = Load(self.made[wanted], (*index[:d], *index[d + 1 :], along))
            short = p.extent != p.axis.extent and any(along in axes_of(i) for i in index)
            return below(x, along, p.axis.extent) if short and wanted is None else x

        return msgspec.structs.replace(s, reduce=(along,), body=map_loads(s.body, read))


def _longer(program: Program, odd: Sequence[OddProduct]) -> dict[str, int]:
    """The new last extents of tensors that can be computed longer, with all that need equal layouts."""
    free, ties = intermediates(program), ties_of(program)
    made = {s.out.name: s for s in statements(program.body) if isinstance(s, Compute)}
    begun = {t.name for t in (*program.inputs, *(w.tensor for w in program.weights))}
    out: dict[str, int] = {}

    def can(name: str, extent: int) -> bool:
        if out.get(name, extent) != extent:
            return False
        if name in begun:  # it is copied instead
            return True
        return name in free and (name not in made or _can_lengthen(made[name]))

    for rows in (rows for p in odd for rows in p.rows.values()):
        t = rows.tensor
        if t.name not in free or not rows.is_last or rows.extent == t.shape[-1]:
            continue
        together = tied_with(t.name, ties)
        if all(can(name, rows.extent) for name in together):
            out |= dict.fromkeys(together - begun, rows.extent)
    return out


def _can_lengthen(s: Compute) -> bool:
    if s.live:
        return False
    return _can_widen(s) if contraction(s) is not None else s.combiner in (None, *ZEROS)


def _can_widen(s: Compute) -> bool:
    """Whether a product's last axis belongs to one factor, and both are loads."""
    found = contraction(s)
    if found is None or s.live or found.n != (len(s.axes) - 1,) or found.grains:
        return False
    return masked(found.left) is not None and masked(found.right) is not None


def _widened(program: Program, extents: Mapping[str, int]) -> dict[str, int]:
    """The same for products, and sums over terms of each row's own, that longer tensors read element by element: these are their
    epilogues."""
    whole = Uses(program).whole
    made = {s.out.name: s for s in statements(program.body) if isinstance(s, Compute)}
    out: dict[str, int] = {}
    for name, extent in extents.items():
        s = made.get(name)
        for x in loads(s.body) if s is not None and s.combiner is None else ():
            source = made.get(x.tensor.name)
            if source is None or s is None or x.index != s.axes or x.tensor.name in whole:
                continue
            if x.tensor.name not in extents and (_can_widen(source) or segment_ends(source)):
                out[x.tensor.name] = extent
    return out


def _lengthened(t: Tensor, extent: int) -> Tensor:
    return msgspec.structs.replace(t, shape=(*t.shape[:-1], extent))


def _read(s: Compute, f: Callable[[Load], Expr]) -> Compute:
    body = map_loads(s.body, f)
    return s if body is s.body else msgspec.structs.replace(s, body=body)


def _padded(s: Compute, out: Tensor) -> Compute:
    """`s`, computing `out` with zeros after the original columns."""
    *rest, last = s.axes
    longer = Axis(last.name, out.shape[-1])
    body = below(substitute(s.body, {last.name: longer}), longer, last.extent)
    return msgspec.structs.replace(s, out=out, axes=(*rest, longer), body=body)


def _wide(s: Compute, out: Tensor) -> Compute:
    """The product `s` with more columns, which are zero where its other factor is finite."""
    *rest, last = s.axes
    longer = Axis(last.name, out.shape[-1])

    def read(x: Load) -> Expr:
        index = tuple(substitute(i, {last.name: longer}) for i in x.index)
        y = Load(x.tensor, index)
        return below(y, longer, last.extent) if longer in axes_of(y) else y

    body = map_loads(s.body, read)
    return msgspec.structs.replace(s, out=out, axes=(*rest, longer), body=body)
