"""A softmax-weighted sum: the configuration of `targets/cuda/device/attend.cuh` and the functors that it calls."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from monotile.analysis.affine import within
from monotile.analysis.dead import Side as End
from monotile.analysis.dead import side_of
from monotile.analysis.unconditional import TRUE, conditional, holding
from monotile.codegen.block import BlockEmitter
from monotile.codegen.site import Range, Site, Span, at_start
from monotile.codegen.spelling import bare, convert, literal
from monotile.codegen.vector import VectorEmitter
from monotile.codegen.writer import Writer
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    Load,
    Select,
    axes_of,
    const,
    loads,
    substitute,
    walk,
)
from monotile.ir.program import Compute
from monotile.kernels.attention.match import Attention, stored
from monotile.kernels.attention.method import Attend
from monotile.kernels.common.cuda_config import ATTENTION, config
from monotile.kernels.common.cuda_epilogue import KERNEL, Sums, write_epilogue
from monotile.kernels.common.cuda_operands import Matrix, Side, write_side
from monotile.kernels.common.cuda_threads import each_batch
from monotile.transform.simplify.simplify import simplify_expr


@dataclass(frozen=True, slots=True)
class Keys:
    """The axis of the keys, and its live range; None for all."""

    key: Axis
    span: Span | None


def write(e: BlockEmitter, site: Site) -> None:
    """Batches one by one; in each, blocks of rows; in each, the whole block of threads."""
    method, names = site.step.method, site.step.computes[: site.step.anchor + 1]
    assert isinstance(method, Attend)
    found = stored(method, site.named(names))
    m, n = site.ranges[method.m], site.ranges[method.n]
    key = Axis("key", found.key.extent)
    inner = replace(
        site,
        point={**site.point, **{a: substitute(x, dict(site.point)) for a, x in found.point.items()}}
        | {found.key.name: key},
    )
    w = e.writer
    with ExitStack() as stack:
        stack.enter_context(each_batch(e, site, (method.m, method.n)))
        span = site.spans.get(found.result.reduce[0].name)
        sides = _sides(e, site, inner, found, method, (m, n), Keys(key, span))
        _score(e, inner, found, m, Keys(key, span))
        width = method.epilogue.width
        write_epilogue(e, site, Sums(m, n, found.result.body.dtype, width))
        warps = e.plan.launch.threads // e.target.warp
        fields = config(
            "AttentionConfig", ATTENTION, kernel=f"mt::Kernel::{KERNEL[method.instruction]}",
            features=found.products.reduce[0].extent, columns=n.variable.extent, keys=key.extent,
            block_m=method.block_m, chunk=method.chunk, warps=warps, depth=method.depth, vector=width,
            passes=method.passes, bounded=span is not None, part=method.part,
        )  # fmt: skip
        for side, text in zip(("Query", "Key", "Value"), sides, strict=True):
            w.write(f"using {side} = {text};")
        w.write(f"using Attention = mt::Attention<{fields}, Query, Key, Value>;")
        w.write(
            f'static_assert(Attention::BYTES <= {site.step.scratch_bytes}, "The Plan gives attention too little shared memory.");'
        )
        finish = _write_rows(e, inner, found, m) if method.part else f"{found.least}f"
        w.write(
            f"mt::attend<Attention>(scratch + {site.step.scratch}, 0, {m.count}, {_ends(e, key, span)}, {e.await_}, query, key, value, score, {finish}, fetch, epilogue);"
        )


def _write_rows(e: VectorEmitter, inner: Site, found: Attention, m: Range) -> str:
    """Emits the functor `rows`, which stores the one-per-row results of a part of the keys; gives the text of its `mt::key_part`."""
    lowest = found.lowest
    assert lowest is not None
    row, given = m.variable.name, ("maximum", "total")
    head = f"auto rows = [&](idx {row}, float maximum, float total)"
    with e.writer.open(head, [row, *given], fence=True, tail=";"):
        for s, text in zip((found.top, found.total), given, strict=True):
            if e.is_stored(s.out):
                point = {n: substitute(x, dict(inner.point)) for n, x in found.of_row(s).items()}
                e.put(s, point, convert(text, DType.F32, s.out.dtype))
    return f"mt::key_part({literal(Const(lowest, DType.F32))}, rows)"


def _sides(
    e: VectorEmitter,
    site: Site,
    inner: Site,
    found: Attention,
    method: Attend,
    ranges: tuple[Range, Range],
    along: Keys,
) -> tuple[str, str, str]:
    """Emits the functors `query`, `key` and `value`; gives the texts of their `mt::Side`. All rows of a task have the same keys."""
    (m, n), key = ranges, along.key
    element = found.values.dtype
    features = found.products.reduce
    query = write_side(
        e, inner, Matrix("query", found.queries, m.variable, features),
        Side(element, method.query, check_rows=m.count != str(method.block_m)),
    )  # fmt: skip
    keys = write_side(
        e, at_start(inner, m), Matrix("key", found.keys, key, features),
        Side(element, method.key, check_rows=True),
    )  # fmt: skip
    values = write_side(
        e, at_start(site, m), Matrix("value", _defined(e, found, along), n.variable, found.result.reduce),
        Side(element, method.value, check_rows=False),
    )  # fmt: skip
    return query, keys, values


def _defined(e: VectorEmitter, found: Attention, along: Keys) -> Expr:
    """The values, zeros where they are undefined, since an exponential of 0 times an undefined value may be NaN. Tensors of the caller
    are defined."""
    (reduced,) = found.result.reduce
    made = [e.computes.get(x.tensor.name) for x in loads(found.values)]
    if along.span is None or not any(isinstance(s, Compute) and s.live for s in made):
        return found.values
    inside = Binary("lt", reduced, along.span.end)
    return Select(inside, found.values, const(0, found.values.dtype))


def _ends(e: VectorEmitter, key: Axis, span: Span | None) -> str:
    """Texts of the first live key, and of the end of the live keys."""
    if span is None:
        return f"0, {key.extent}"
    return f"{bare(e.index(span.first))}, {bare(e.index(span.end))}"


def _score(e: VectorEmitter, inner: Site, found: Attention, m: Range, keys: Keys) -> None:
    """Emits the functor `score`: for a row, the epilogue of its product with a key, in float32. Values that depend on the row alone are
    loaded once for all keys of a chunk. Where all of these are within the comparisons that bound a row's keys, nothing is compared."""
    key, span, w = keys.key, keys.span, e.writer
    if found.scale is not None and span is None:
        w.write(f"const mt::Scaled score{{{literal(Const(found.scale, DType.F32))}}};")
        return
    with w.open(f"auto score = [&](idx {m.variable.name})", [m.variable.name], fence=True, tail=";") as block:  # fmt: skip
        for x in _of_row(found, inner, key):
            name = w.fresh("own")
            w.write(f"const {e.values[x.dtype]} {name} = {bare(e.value(x))};")
            w.define(name)
            block.names[x] = name
        _write_score(e, inner, found, keys, "masked", within=False)
        ends = [x for s in found.scores for x in _ends_of_row(s, inner, key)]
        if not ends and span is None:
            w.write("return mt::RowScore{masked};")
            return
        _write_score(e, inner, found, Keys(key, None), "plain", within=True)
        with _functor(w, "whole", {"first": "idx", "last": "idx"}):
            tests = [] if span is None else [f"first >= {bare(e.index(span.first))}", f"last < {bare(e.index(span.end))}"]  # fmt: skip
            for side in ends:
                to: dict[str, Expr] = {key.name: Axis("last" if side.end else "first", key.extent)}
                point = {n: substitute(x, to) for n, x in inner.point.items()}
                tests.append(e.body(side.term, point))
            w.write(f"return {' && '.join(tests)};")
        w.write("return mt::RowScore{masked, plain, whole};")


def _write_score(
    e: VectorEmitter, inner: Site, found: Attention, keys: Keys, name: str, *, within: bool
) -> None:
    """Emits the functor `name`: the score of a key and its product with the row. within: where the ends of the row's keys hold."""
    key, span, w, dtype = keys.key, keys.span, e.writer, found.products.body.dtype
    with _functor(w, name, {key.name: "idx", "product": "float"}):
        if span is not None:
            first, end = bare(e.index(span.first)), bare(e.index(span.end))
            w.write(f"if ({key.name} < {first} || {key.name} >= {end}) return -MT_INF;")
        text, last = "product", found.products
        for s in (*found.scores, None):
            if not e.options.excess_precision:
                text = convert(text, dtype, last.out.dtype)
            if s is None:
                break
            variable = w.fresh("x")
            w.write(f"const float {variable} = {bare(text)};")
            w.define(variable)
            e.hold(last.out.name, variable)
            body = _within_ends(s, inner, key) if within else s.body
            text, dtype, last = e.body(body, inner.point), s.body.dtype, s
        w.write(f"return {bare(text)};")


@contextmanager
def _functor(w: Writer, name: str, arguments: Mapping[str, str]) -> Generator[None]:
    """A functor that keeps the row's values, which it outlives. A failed index check is the function's."""
    given = ", ".join(f"{kind} {x}" for x, kind in arguments.items())
    with w.open(f"auto {name} = [=]({given})", [*arguments], fence=True, tail=";") as block:
        yield
        if any("MT_CHECK" in line for line in block.lines):
            block.head = block.head.replace("[=]", "[=, &mt_failed]")


def _within_ends(s: Compute, inner: Site, key: Axis) -> Expr:
    """The body of `s` where the ends of a row hold."""
    true = {x.term for x in _ends_of_row(s, inner, key)}
    return simplify_expr(holding(s.body, true)) if true else s.body


def _ends_of_row(s: Compute, inner: Site, key: Axis) -> Iterator[End]:
    """The comparisons in `s` that hold for all keys before, or after, one for which they hold, and that can be evaluated anywhere."""
    own = next((a for a in s.axes if inner.point.get(a.name) == key), None)
    if own is None:
        return
    there = {*_readable(s)}
    for t in dict.fromkeys(walk(s.body)):
        side = side_of(t, own)
        if side is not None and {x for x, _ in conditional(t)} <= there:
            yield side


def _of_row(found: Attention, inner: Site, key: Axis) -> Iterator[Load]:
    """The loads of a row's scores that do not depend on the key and are valid whether or not they are used."""
    own, point = {c.out.name for c in found.inner}, dict(inner.point)
    every = (substitute(x, point) for s in found.scores for x in _readable(s) if x.tensor.name not in own)  # fmt: skip
    for x in dict.fromkeys(every):
        if isinstance(x, Load) and key not in axes_of(x):
            yield x


def _readable(s: Compute) -> Iterator[Load]:
    """The loads of `s` that are valid wherever it is evaluated."""
    for x, when in conditional(s.body):
        if when == TRUE or all(map(within, x.index, x.tensor.shape)):
            yield x
