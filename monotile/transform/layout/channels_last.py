"""Layout assignment: dimensions that products sum over become the last in memory (as in Ladder and Welder; CUDA).

A convolution reads a window of an image for each result. With channels last, the window is a few runs of whole vectors, which
asynchronous copies can fetch, padding included; with columns last, it is single elements. So the channels become the last
dimension of all tensors that share them: tensors computed from each other element by element, by a product with a weight,
or carried through a loop. The caller's tensors keep their layout. Weights that are multiplied with windows, and inputs
with enough channels, are first copied in the new order.
"""

import itertools
import math
from collections.abc import Callable, Container, Iterator, Mapping, Set

import msgspec

from monotile.analysis.affine import affine, contiguous_run, offset
from monotile.analysis.contraction import contraction
from monotile.analysis.masked import masked
from monotile.analysis.windows import Window, windows_of
from monotile.analysis.words import by_words
from monotile.ir.expr import Axis, Expr, Load, Tensor, axes_of, idx, loads, map_loads
from monotile.ir.program import (
    Compute,
    Loop,
    Program,
    Statement,
    compute,
    defined,
    statements,
    used,
)
from monotile.targets.target import Target
from monotile.transform.layout.align_axes import Arrangement, align_axes, permuted, rearranged
from monotile.transform.layout.copies import (
    MOST_BEHIND,
    Scattered,
    long_kernels,
    scattered_weights,
)
from monotile.transform.layout.intermediates import intermediates, tied
from monotile.transform.layout.pad_channels import RUN
from monotile.transform.layout.reindex import reindex_reductions
from monotile.transform.names import Names
from monotile.transform.rewrite import map_carried, map_exprs, map_program

NEIGHBOURS = 16  # channels that are enough for threads side by side
Dimension = tuple[str, int]  # by tensor name


def assign_layouts(program: Program, target: Target) -> Program:
    """`program` with these layouts. Where wide copies have no advantage, as on the CPU, the caller's tensors are read in their own
    layout, except the few weights of depthwise convolutions; and operands and results of grouped convolutions, which have few
    columns, keep theirs."""
    windows = _in_runs(windows_of(program), target)
    wide = target.has.wide_copies
    scattered = list(scattered_weights(program, windows, target)) if wide else []
    if not windows and not scattered:
        return program
    names = Names(program)
    long = list(long_kernels(program, windows)) if wide else []
    found = _orders(program, windows, names, target, {name for name, _, _ in long})
    scattered += [x for x in long if x[0] in found]
    program, copies = _copied(program, windows, found, scattered, names, wide=wide)
    results = [_in_order(t, found[t.name]) for t in program.results if t.name in found]
    program = map_program(program, lambda s: _arranged(s, found))
    body = (*copies, *program.body, *results)
    return reindex_reductions(align_axes(msgspec.structs.replace(program, body=body)))


def _orders(
    program: Program, windows: dict[str, Window], names: Names, target: Target, long: Set[str]
) -> dict[str, Arrangement]:
    """The tensors whose layout changes, by name. Where copies are wide, also those with a dimension of grouped convolutions' channels.
    long: kernels computed from weights that are copied if their layout changes."""
    grouped = target.has.wide_copies
    inside = _handed_on(program)
    joined = _joined(program, windows)
    last = {joined.find((w.image.tensor.name, w.channel)) for w in windows.values()}
    if not grouped:
        last -= {
            joined.find((w.image.tensor.name, w.channel)) for w in windows.values() if w.in_groups
        }
        last -= _by_words(program, windows, joined, target)
    kernels = {w.kernel.tensor.name: w.depth for w in windows.values() if w.kernel is not None}
    is_componentwise = _apart(program, windows)
    flat = _flat(program, target)
    found: dict[str, Arrangement] = {}
    for t in intermediates(program, inside).values():
        if t.name in flat:
            continue
        dims = [d for d in range(len(t.shape)) if joined.find((t.name, d)) in last]
        if t.name in kernels:  # computed from weights
            few = math.prod(t.shape[kernels[t.name] + 1 :]) <= MOST_BEHIND
            dims = [kernels[t.name]] if few or t.name in long else []
        if (
            len(dims) == 1
            and dims[0] != len(t.shape) - 1
            and not is_componentwise((t.name, dims[0]))
        ):
            name = names.fresh(f"{t.name}_inside") if t.name in inside else t.name
            found[t.name] = _moved(t, dims[0], name)
    found |= _alone(program, found)
    together = list(tied(program))
    while apart := [
        ts for ts in together if len({_source(found, t, first) for t, first in ts}) > 1
    ]:
        for t, _ in itertools.chain(*apart):
            found.pop(t.name, None)
    return found


def _by_words(
    program: Program, windows: Mapping[str, Window], joined: "_Classes", target: Target
) -> set[Dimension]:
    """Channels of images whose windows are slowest in tiles of words, with weights read in place: windows that are contiguous are packed
    fastest. Weights that may be copied have panels, and their windows are read in place."""
    copied = {w.tensor.name for w in program.weights if w.copied}
    most: dict[Dimension, float] = {}
    for s in statements(program.body):
        if not isinstance(s, Compute) or (w := windows.get(s.out.name)) is None:
            continue
        channel, words = joined.find((w.image.tensor.name, w.channel)), ""
        if (
            not w.depthwise
            and w.kernel is not None
            and w.kernel.tensor.name not in copied
            and by_words(w.kernel.dtype, target.instructions)
        ):
            words = by_words(w.image.dtype, target.instructions)
        products = math.prod(a.extent for a in (*s.axes, *s.reduce))
        seconds = products / target.flops[words or "fma"]
        most[channel] = most.get(channel, 0.0) + (seconds if words else -seconds)
    return {channel for channel, seconds in most.items() if seconds > 0}


def _alone(program: Program, found: Mapping[str, Arrangement]) -> dict[str, Arrangement]:
    """Tensors with extent 1 where others have the dimension that is now last, as from `keepdim`: permuted in the same way, so that they
    have one element for each row of theirs."""
    own = intermediates(program)
    new: dict[str, Arrangement] = {}
    for s in statements(program.body):
        if not isinstance(s, Compute) or s.out.name in found or s.out.name not in own:
            continue
        for x in loads(s.body):
            a = found.get(x.tensor.name) or new.get(x.tensor.name)
            d = None if a is None else a.source[-1]
            if d is None or len(x.index) != len(s.axes) or s.axes[d].extent != 1:
                continue
            rest = [k for k in range(len(s.axes)) if k != d]
            if all(x.index[k] in {s.axes[k], idx(0)} for k in rest) and not _is_last(s.out, d):
                new[s.out.name] = _moved(s.out, d, s.out.name)
    return new


def _apart(program: Program, windows: Container[str]) -> Callable[[Dimension], bool]:
    """Whether a dimension is a batch dimension of products that sum over the last one of an operand or compute it; or the same of an
    operand or an element-wise reader of the tensor."""
    alike, found = _Classes(), list[Dimension]()
    for s in statements(program.body):
        if not isinstance(s, Compute):
            continue
        product = contraction(s)
        if product is None:
            for x in loads(s.body):
                for d, i in enumerate(x.index):
                    if isinstance(i, Axis) and i in s.axes:
                        alike.join((x.tensor.name, d), (s.out.name, s.axes.index(i)))
            continue
        batch = {s.axes[p] for p in product.batch}
        for x in (masked(product.left), masked(product.right)):
            if x is not None and x.load.index and x.load.index[-1] in s.reduce:
                index = enumerate(x.load.index)
                found += ((x.load.tensor.name, d) for d, i in index if i in batch)
                found += ((s.out.name, p) for p in product.batch if s.out.name not in windows)
    apart = {alike.find(d) for d in found}
    return lambda d: alike.find(d) in apart


def _flat(program: Program, target: Target) -> frozenset[str]:
    """Tensors that products alone read, as one long row each: a classifier's weights have the rows' order, positions after channels, and
    are larger."""
    read, other = set[str](), set[str]()
    for s in statements(program.body):
        own = set[str]()
        if isinstance(s, Compute) and (product := contraction(s)):
            sides = (masked(product.left), masked(product.right))
            own = {x.load.tensor.name for x in sides if x and _is_row(x.load, s, target)}
        read |= own
        other |= {t.name for t in used(s)} - own
    return frozenset(read - other)


def _is_row(x: Load, s: Compute, target: Target) -> bool:
    """Whether `x` stores the terms of a sum of `s` contiguously, across more than one of its dimensions."""
    vector = target.vector_bytes // x.dtype.itemsize
    return any(
        sum(a in axes_of(i) for i in x.index) > 1 and contiguous_run(offset(x), a, vector) >= vector
        for a in s.reduce
    )


def _in_runs(windows: dict[str, Window], target: Target) -> dict[str, Window]:
    """Those with enough channels for runs of whole copies, or with one channel for each thread where neighbouring threads read
    contiguously."""

    def run(w: Window) -> int:
        return contiguous_run(affine(w.image.index[w.channel]), w.along, RUN)

    def each(w: Window) -> bool:
        return target.has.coalescing and w.depthwise and w.along.extent >= NEIGHBOURS

    return {n: w for n, w in windows.items() if run(w) * w.image.dtype.itemsize >= RUN or each(w)}


def _handed_on(program: Program) -> frozenset[str]:
    """Results that statements also read, or that loops return: these are copied for the caller if their layout changes. The others are
    written in the caller's layout."""
    read = {t.name for s in statements(program.body) for t in used(s)}
    loops = {t.name for s in statements(program.body) if isinstance(s, Loop) for t in defined(s)}
    return frozenset(t.name for t in program.results) & (read | loops)


def _source(found: dict[str, Arrangement], t: Tensor, first: int) -> tuple[int, ...]:
    """The origin of the dimensions of `t`, without the first `first`."""
    source = found[t.name].source if t.name in found else range(len(t.shape))
    return tuple(-1 if d is None else d - first for d in source)[first:]


class _Classes:
    """Equivalence classes of dimensions across tensors."""

    def __init__(self) -> None:
        self._of: dict[Dimension, Dimension] = {}

    def find(self, d: Dimension) -> Dimension:
        while (up := self._of.get(d, d)) != d:
            self._of[d] = d = self._of.get(up, up)
        return d

    def join(self, a: Dimension, b: Dimension) -> None:
        self._of[self.find(a)] = self.find(b)


def _joined(program: Program, windows: dict[str, Window]) -> _Classes:
    """Joins dimensions that must have equal layouts. A dimension of a result joins one that it reads if the two indices differ by a
    constant; the channels that a product with a weight, or a window, reads join those that it computes."""
    joined = _Classes()
    kernels = (w.kernel.tensor.name for w in windows.values() if w.kernel is not None)
    held = _from_weights(program).union(kernels)
    for s in statements(program.body):
        match s:
            case Compute():
                own = {a: d for d, a in enumerate(s.axes) if a.extent > 1}
                for x in loads(s.body):
                    if x.tensor.name in held:
                        continue
                    for d, i in enumerate(x.index):
                        match affine(i).terms:
                            case ((Axis() as a, 1),) if a in own:
                                joined.join((x.tensor.name, d), (s.out.name, own[a]))
                            case _:
                                pass
                if (w := windows.get(s.out.name)) is not None and w.depthwise:
                    joined.join((w.image.tensor.name, w.channel), (s.out.name, own[w.along]))
                for a, b in _mixed(s, held):
                    joined.join(a, b)
            case Loop():
                for c in s.carried:
                    for d in range(len(c.init.shape)):
                        for t in (c.param, c.result, c.out):
                            joined.join((c.init.name, d), (t.name, d))
                for k in s.stacked:
                    for d in range(len(k.value.shape)):
                        joined.join((k.value.name, d), (k.out.name, d + 1))
            case _:
                pass
    return joined


def _from_weights(program: Program) -> frozenset[str]:
    """The weights, and tensors computed from weights alone, such as standardised weights."""
    found = {w.tensor.name for w in program.weights}
    for s in statements(program.body):
        if isinstance(s, Compute) and (read := {x.tensor.name for x in loads(s.body)}):
            found |= {s.out.name} if read <= found else set()
    return frozenset(found)


def _mixed(s: Compute, held: frozenset[str]) -> Iterator[tuple[Dimension, Dimension]]:
    """The input and the output channels of a product with a weight."""
    found = contraction(s)
    if found is None:
        return
    for side, other, own in (
        (found.left, found.right, found.n),
        (found.right, found.left, found.m),
    ):
        x, weights = masked(side), {w.tensor.name for w in loads(other)}
        made = [p for p in own if s.axes[p].extent > 1]
        if x is None or not weights or not weights <= held or len(made) != 1:
            continue
        for d, i in enumerate(x.load.index):
            summed = axes_of(i) & {*s.reduce}
            beside = any(contiguous_run(affine(i), r, 2) > 1 for r in summed)
            if i in summed or (beside and not axes_of(i) - summed - {s.axes[made[0]]}):
                yield (x.load.tensor.name, d), (s.out.name, made[0])


def _is_last(t: Tensor, d: int) -> bool:
    """Whether the dimension is the last in memory."""
    return math.prod(t.shape[d + 1 :]) == 1


def _moved(t: Tensor, d: int, name: str) -> Arrangement:
    """`t`, called `name`, with dimension d last."""
    return permuted(t, (*(k for k in range(len(t.shape)) if k != d), d), name)


def _in_order(t: Tensor, a: Arrangement) -> Compute:
    """The copy of `t` in the caller's layout."""
    return compute(t, lambda *i: Load(a.out, a.index(i)))


def _copied(
    program: Program,
    windows: dict[str, Window],
    found: dict[str, Arrangement],
    scattered: list[Scattered],
    names: Names,
    *,
    wide: bool,
) -> tuple[Program, list[Compute]]:
    """The products reading copies of the caller's tensors in the new order, and the statements that copy. wide: of all; else only of
    kernels that have one value for each channel and position."""
    inputs, weights = {t.name for t in program.inputs}, {w.tensor.name for w in program.weights}
    copies: dict[str, Arrangement] = {}
    made: list[Compute] = []
    wanted: dict[str, set[str]] = {}

    def copy(x: Load, d: int) -> str:
        t = x.tensor
        if t.name not in copies:
            copies[t.name] = a = _moved(t, d, names.fresh(f"{t.name}_by_{d}"))
            old = dict(zip(a.source, range(len(a.source)), strict=True))
            made.append(compute(a.out, lambda *i: Load(t, tuple(i[old[k]] for k in range(len(i))))))
        return t.name

    for name, w in windows.items():
        image, inside = w.image.tensor, w.image.tensor.name in found
        reads: set[str] = set()
        if wide and image.name in inputs and not _is_last(image, w.channel):
            reads.add(copy(w.image, w.channel))
            inside = True
        inside = inside or _is_last(image, w.channel)
        held = w.kernel and w.kernel.tensor.name in weights and (wide or w.depthwise)
        kernel = w.kernel if inside and held else None
        if kernel is not None and not _is_last(kernel.tensor, w.depth):
            reads.add(copy(kernel, w.depth))
        wanted[name] = reads
    for name, x, d in scattered:
        wanted.setdefault(name, set()).add(copy(x, d))

    def reading(s: Statement) -> Statement:
        here = wanted.get(s.out.name, set()) if isinstance(s, Compute) else set()

        def read(x: Load) -> Expr:
            a = copies.get(x.tensor.name) if x.tensor.name in here else None
            return x if a is None else Load(a.out, a.index(x.index))

        return map_exprs(s, lambda e: map_loads(e, read)) if here else s

    return map_program(program, reading), made


def _arranged(s: Statement, found: dict[str, Arrangement]) -> Statement:
    """`s` with its tensors in their new layouts."""
    if not isinstance(s, Loop):
        return rearranged(s, found)
    return map_carried(s, lambda t: found[t.name].out if t.name in found else t)
