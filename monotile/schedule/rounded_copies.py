"""Copies of TF32 factors that are rounded once, for tensors that their producer cannot round: weights read in place, inputs, and tensors
with other readers. The cost model, which knows what rounding each chunk costs warpgroups, decides for each tensor by itself, since a
network has many.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from monotile.analysis.contraction import in_tf32, uncast
from monotile.analysis.masked import masked
from monotile.analysis.states import old_values
from monotile.choice.digest import digest_statements
from monotile.ir.expr import Binary, Expr, Load, Tensor, Unary, map_loads
from monotile.ir.program import Branch, Compute, Loop, Program, Statement, compute, defined
from monotile.kernels.draft import Context
from monotile.kernels.group import single
from monotile.kernels.registry import tiled
from monotile.schedule.tiles import cut
from monotile.targets.target import Target
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, with_body

SURE = 1.25  # times a copy's cost that products have to save


@dataclass(slots=True)
class _Factor:
    """A tensor that products round. made: how often a call computes it; 0 for inputs and weights. readers: the products, each with its
    number of executions."""

    tensor: Tensor
    made: int
    readers: list[tuple[Compute, int]] = field(default_factory=list[tuple[Compute, int]])


def copy_rounded(program: Program, target: Target, context: Context) -> Program:
    """`program` with such rounded copies, where products save more than the copies cost."""
    names, copies = Names(program), dict[str, Compute]()
    fixed = old_values(program) | frozenset(program.watched)
    for f in _factors(program, context):
        if f.tensor.name not in fixed and _pays(f, target, context):
            copies[f.tensor.name] = _copy(f.tensor, names, f.readers[0][0].origin)
    return _with(program, copies) if copies else program


def _factors(program: Program, context: Context) -> Iterator[_Factor]:
    given = (*program.inputs, *(w.tensor for w in program.weights))
    made = {t.name: 0 for t in given}
    found: dict[str, _Factor] = {}

    def go(body: Body, times: int) -> None:
        for s in body:
            match s:
                case Loop():
                    made.update({c.param.name: times * s.axis.extent for c in s.carried})
                    go(s.body, times * s.axis.extent)
                case Branch():
                    go(s.then, times)
                    go(s.otherwise, times)
                case Compute() if in_tf32(s) and tiled(s, context):
                    for t in _rounded_by(s):
                        own = found.setdefault(t.name, _Factor(t, made.get(t.name, times)))
                        own.readers.append((s, times))
                case _:
                    pass
            made.update({t.name: times for t in defined(s)})

    go(program.body, 1)
    yield from found.values()


def _sides(s: Compute) -> tuple[Expr, Expr]:
    assert isinstance(s.body, Binary)
    return s.body.a, s.body.b


def _rounded_by(s: Compute) -> tuple[Tensor, ...]:
    """The tensors that it rounds, each once, in order."""
    return tuple(dict.fromkeys(x.tensor for side in _sides(s) if (x := _unrounded(side))))


def _unrounded(e: Expr) -> Load | None:
    """Tensors loaded as a factor that the product rounds."""
    x = masked(uncast(e)) if isinstance(e, Unary) and e.op == "tf32" else None
    return x.load if x else None


def _pays(f: _Factor, target: Target, context: Context) -> bool:
    """Whether the products save more than the copy and the hand-off before it."""
    copy = cut(single(_copy(f.tensor, None, "")), context)
    if copy is None:
        return False
    pairs = [(cut(single(s), context), cut(single(_marked(s, f.tensor)), context), n) for s, n in f.readers]  # fmt: skip
    gain = sum((a.seconds - b.seconds) * n for a, b, n in pairs if a and b)
    kept = target.l2_bytes * target.model.common.kept
    memory = 2 * f.tensor.nbytes / target.dram_bandwidth if f.tensor.nbytes > kept else 0.0
    each = SURE * (max(copy.seconds, memory) + target.barrier_seconds)
    return context.whether(
        "round copies",
        lambda way: each * max(f.made, 1) if way else gain,
        shape=lambda: _digest(f, context),
    )


def _digest(f: _Factor, context: Context) -> str:
    """Digest of everything that the costs of the copy and its readers depend on."""
    sides = [[_reads(side, f.tensor) for side in _sides(s)] for s, _ in f.readers]
    times = (f.made, *(n for _, n in f.readers))
    readers = [s for s, _ in f.readers]
    return digest_statements(readers, context.tables, sides, times, f.tensor.shape)


def _reads(e: Expr, t: Tensor) -> bool:
    x = _unrounded(e)
    return x is not None and x.tensor == t


def _marked(s: Compute, t: Tensor, new: Tensor | None = None) -> Compute:
    """`s` with loads of `t`, or of `new` in its place, marked as rounded."""

    def side(e: Expr) -> Expr:
        if not _reads(e, t) or not isinstance(e, Unary):
            return e
        inner = map_loads(e.x, lambda y: Load(new, y.index) if new and y.tensor == t else y)
        return Unary("is_tf32", inner)

    a, b = _sides(s)
    return msgspec.structs.replace(s, body=Binary("mul", side(a), side(b)))


def _copy(t: Tensor, names: Names | None, origin: str) -> Compute:
    name = names.fresh(f"{t.name}_rounded") if names else f"{t.name}_rounded"
    out = Tensor(name, t.shape, t.dtype)
    return compute(out, lambda *i: Unary("to_tf32", Load(t, i)), origin=origin)


def _with(program: Program, copies: dict[str, Compute]) -> Program:
    """`program` with each copy after the statement that computes the tensor, and the products reading the copy."""

    def after(tensors: Iterator[Tensor]) -> tuple[Statement, ...]:
        return tuple(copies[t.name] for t in tensors if t.name in copies)

    def go(body: Body) -> Body:
        out: list[Statement] = []
        for s in body:
            first = after(c.param for c in s.carried) if isinstance(s, Loop) else ()
            s = map_bodies(s, lambda inner, first=first: go((*first, *inner)))
            if isinstance(s, Compute) and in_tf32(s):
                for t in _rounded_by(s):
                    if t.name in copies:
                        s = _marked(s, t, copies[t.name].out)
            out += (s, *after(iter(defined(s))))
        return tuple(out)

    given = after(t for t in (*program.inputs, *(w.tensor for w in program.weights)))
    return with_body(program, (*given, *go(program.body)))
