"""A Program as text: compact, deterministic, one line per statement.

    y[i0:128, i1:768] f16 = sum(r0:768) f32(x[i0, r0]) * f32(w[i1, r0])   # model.py:12, in forward

Literals have their type as a suffix, except int64 (5) and float32 (5.0).
"""

from collections.abc import Iterator, Sequence

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Cast, Const, Expr, Load, Select, Tensor, Unary
from monotile.ir.program import (
    Branch,
    Compute,
    Live,
    Loop,
    Program,
    Scatter,
    Statement,
    Weight,
    updates,
)

SHORT = {
    DType.BOOL: "bool",
    DType.U8: "u8",
    DType.I8: "i8",
    DType.I16: "i16",
    DType.I32: "i32",
    DType.I64: "i64",
    DType.F8E4M3: "f8e4m3",
    DType.F8E5M2: "f8e5m2",
    DType.F8E8M0: "f8e8m0",
    DType.F16: "f16",
    DType.BF16: "bf16",
    DType.F32: "f32",
    DType.F64: "f64",
}
# Infix operators and their precedence; every other operation is written as a call.
INFIX = {
    "or": ("or", 1),
    "and": ("and", 2),
    "eq": ("==", 3),
    "ne": ("!=", 3),
    "lt": ("<", 3),
    "le": ("<=", 3),
    "gt": (">", 3),
    "ge": (">=", 3),
    "bitor": ("|", 4),
    "bitxor": ("^", 5),
    "bitand": ("&", 6),
    "shl": ("<<", 7),
    "shr": (">>", 7),
    "add": ("+", 8),
    "sub": ("-", 8),
    "mul": ("*", 9),
    "div": ("/", 9),
    "floordiv": ("//", 9),
    "mod": ("%", 9),
}
PREFIX = {"neg": "-", "not": "not "}
TIGHT = 10


def show(program: Program) -> str:
    """The whole Program as text, with a newline at the end."""
    lines = [_input(t, program.watched) for t in program.inputs]
    lines += [_weight(w) for w in program.weights]
    for s in program.body:
        lines += show_statement(s)
    lines.append(f"output {', '.join(t.name for t in program.results)}")
    lines += [f"state {u.name} becomes {u.result.name}" for u in updates(program)]
    return "\n".join(lines) + "\n"


def show_type(t: Tensor) -> str:
    """ "f16[128, 768]"; "f16" for a scalar."""
    shape = f"[{', '.join(map(str, t.shape))}]" if t.shape else ""
    return SHORT[t.dtype] + shape


def _input(t: Tensor, watched: Sequence[str]) -> str:
    return f"input {t.name}: {show_type(t)}{' watched' if t.name in watched else ''}"


def _weight(w: Weight) -> str:
    table = f" table {list(w.tensor.shape[: w.table])}" if w.table else ""
    copied = ", may be copied" if w.copied else ""
    return f"weight {w.tensor.name}: {show_type(w.tensor)}{table} = {', '.join(w.parts)}{copied}"


def show_statement(s: Statement) -> list[str]:
    """The lines of one statement, with its bodies indented."""
    return list(_statement(s))


def _statement(s: Statement) -> Iterator[str]:
    note = f"   # {s.origin}" if s.origin else ""
    match s:
        case Compute():
            over = f"{s.combiner}({_axes(s.reduce)}) " if s.combiner else ""
            note = "".join(f" live {_live(x)}" for x in s.live) + note
            body = show_expr(s.body, TIGHT - 2 if over else 0)
            yield f"{s.out.name}{_box(s.axes)} {SHORT[s.out.dtype]} = {over}{body}{note}"
        case Scatter():
            where = f"[{', '.join(show_expr(e) for e in s.index)}]" if s.index else ""
            by = f" {s.combiner}=" if s.combiner else " ="
            each = "distinct " if s.distinct else ""
            head = f"{s.out.name} {show_type(s.out)} = {s.base.name} with {each}{_box(s.axes)}"
            yield f"{head} {where}{by} {show_expr(s.value)}{note}"
        case Loop():
            count = f" count {s.count.name}" if s.count else ""
            holds = f" while {s.predicate.name}" if s.predicate else ""
            yield f"loop {s.axis.name}:{s.axis.extent}{count}{holds}:{note}"
            for c in s.carried:
                yield f"  carry {c.param.name}: {show_type(c.param)} = {c.init.name} then {c.result.name}"
            yield from _indented(s.body)
            for c in s.carried:
                yield f"  give {c.out.name} = {c.result.name}"
            for k in s.stacked:
                yield f"  stack {k.out.name}[{s.axis.name}] = {k.value.name}"
        case Branch():
            yield f"if {s.predicate.name}:{note}"
            yield from _indented(s.then)
            yield from (f"  give {o.out.name} = {o.then.name}" for o in s.outs)
            yield "else:"
            yield from _indented(s.otherwise)
            yield from (f"  give {o.out.name} = {o.otherwise.name}" for o in s.outs)


def _live(x: Live) -> str:
    first, last = (t.name if t is not None else "" for t in x.ends)
    at = f"[{', '.join(show_expr(a.index) for a in x.at)}]" if x.at else ""
    within = f" within {x.within.name}" if x.within else ""
    return f"{x.axis.name} in [{first and first + at}:{last and last + at}]{within}"


def _indented(body: Sequence[Statement]) -> Iterator[str]:
    for s in body:
        for line in _statement(s):
            yield "  " + line


def _axes(axes: Sequence[Axis]) -> str:
    return ", ".join(f"{a.name}:{a.extent}" for a in axes)


def _box(axes: Sequence[Axis]) -> str:
    return f"[{_axes(axes)}]" if axes else ""


def _constant(e: Const) -> str:
    match e.value:
        case bool():
            return str(e.value).lower()
        case str():
            return e.value if e.dtype is DType.F32 else e.value + SHORT[e.dtype]
        case _:
            plain = DType.F32 if e.dtype.is_float else DType.I64
            number = float(e.value) if e.dtype.is_float else e.value
            return f"{number!r}{'' if e.dtype is plain else SHORT[e.dtype]}"


def show_expr(e: Expr, outer: int = 0) -> str:
    """One expression; in parentheses if its precedence is not above `outer`."""
    match e:
        case Const():
            text = _constant(e)
            return f"({text})" if text.startswith("-") and outer >= TIGHT - 1 else text
        case Axis(name):
            return name
        case Load(tensor, index):
            return f"{tensor.name}[{', '.join(show_expr(i) for i in index)}]"
        case Cast(x, dtype):
            return f"{SHORT[dtype]}({show_expr(x)})"
        case Select(cond, then, otherwise):
            return f"where({show_expr(cond)}, {show_expr(then)}, {show_expr(otherwise)})"
        case Unary(op, x):
            if op not in PREFIX:
                return f"{op}({show_expr(x)})"
            text = PREFIX[op] + show_expr(x, TIGHT)
            return f"({text})" if outer >= TIGHT - 1 else text
        case Binary(op, a, b) if op in INFIX:
            sign, binds = INFIX[op]
            # All associate to the left, except comparisons, which do not associate.
            text = f"{show_expr(a, binds - (binds != 3))} {sign} {show_expr(b, binds)}"
            return f"({text})" if outer >= binds else text
        case Binary(op, a, b):
            return f"{op}({show_expr(a)}, {show_expr(b)})"
