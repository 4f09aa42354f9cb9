"""The functor that decodes a lane's part of a row: `auto decode = [&](words, row, run)`."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from monotile.analysis.codes import Codes, codes_in
from monotile.analysis.encoding import Side
from monotile.analysis.rounding import unrounded
from monotile.codegen.base import SMALL_FLOATS, STORAGE
from monotile.codegen.block import BlockEmitter
from monotile.codegen.packs import lane_of
from monotile.codegen.spelling import bare
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Expr,
    Load,
    Tensor,
    add,
    idx,
    mul,
    rebuild,
    substitute,
)
from monotile.ir.intervals import interval
from monotile.kernels.common.cuda_operands import ELEMENT
from monotile.kernels.common.cuda_threads import placed, spread
from monotile.kernels.gemv import tiles
from monotile.kernels.gemv.cuda_tasks import TaskRows, alone
from monotile.kernels.gemv.method import GemvMma, SlotOperand
from monotile.kernels.gemv.pairs import Both, Code, Operand, Pair, in_pairs
from monotile.kernels.gemv.problem import Problem

Given = Mapping[Expr, Expr]  # variables of the generated code for subexpressions of the factor


@dataclass(frozen=True, slots=True)
class _Decode:
    """kind: the element type in CUDA C++. count: elements of a run. layout: offsets of sides and tables."""

    e: BlockEmitter
    rows: TaskRows
    method: GemvMma
    layout: tiles.Layout
    kind: str
    count: int

    @property
    def found(self) -> Problem:
        return self.rows.found

    @property
    def codes(self) -> Codes:
        assert self.found.codes is not None
        codes = codes_in(self.found.factor, self.found.along, self.found.codes)
        assert codes is not None
        return codes


def order_of(found: Problem, method: GemvMma) -> tuple[int, int]:
    """The order of the vectors' elements that matches the order in which codes are extracted from their words: PER and PLACES of
    `mt::code_place`."""
    if method.decode == "elements":
        return 1, 0
    assert found.codes is not None
    codes = codes_in(found.factor, found.along, found.codes)
    assert codes is not None
    places = sum(codes.order.index(i) << 4 * i for i in range(found.per))
    return (1, 0) if codes.bits == 8 else (found.per, places)


def write_decode(e: BlockEmitter, rows: TaskRows, layout: tiles.Layout) -> None:
    """Writes the functor. layout: offsets of sides."""
    method, found, w = rows.method, rows.found, e.writer
    assert isinstance(method, GemvMma)
    d = _Decode(
        e, rows, method, layout, ELEMENT[found.factor.dtype], tiles.elements(found, method.run)
    )
    words = f"const mt::Pack<uint32_t, {method.run // 4}>& words"
    head = f"auto decode = [&]({words}, const mt::GemvRun& at)"
    with w.open(head, fence=True, tail=";"), _registers(e):
        given = _write_sides(d)
        match method.decode:
            case "elements":
                _write_elements(d, given)
            case "codes":
                _write_codes(d, given)
            case _:
                _write_pairs(d, given)
        w.write("return values;")


@contextmanager
def _registers(e: BlockEmitter) -> Generator[None]:
    before = dict(e.registers)
    yield
    e.registers.clear()
    e.registers.update(before)


def _write_sides(d: _Decode) -> dict[Expr, Expr]:
    """Loads the row's sides into variables."""
    e, codes, given = d.e, d.found.codes, dict[Expr, Expr]()
    _write_place(d)
    for k, (s, array) in enumerate(zip(codes.sides if codes else (), d.layout.sides, strict=True)):
        dtype, name = s.load.dtype, f"given{k}"
        base, row, run = ("at.slot", "at.line", "at.own") if array.in_slot else ("own", "at.row", "at.run")  # fmt: skip
        step = f" + {run} / {s.run // d.count}" if s.run else ""
        brought = d.method.sides[k]
        start = f" + ({_shift(d, s, brought)})" if brought and not brought.aligned else ""
        where = f"(const {STORAGE[dtype]}*)({base} + {array.offset} + {row} * {array.pitch}{start}){step}"
        e.writer.write(f"const {e.values[dtype]} {name} = {_value(where, dtype)};")
        e.writer.define(name)
        given[s.load] = _held(e, name, dtype)
    return given


def _write_place(d: _Decode) -> None:
    """Writes the lane's row of the task and the first run of the piece, where sides that lie unaligned need them."""
    if any(s is not None and not s.aligned for s in d.method.sides):
        d.e.writer.write("const idx row = at.row, first = at.run - at.own;")
        d.e.writer.define("row")
        d.e.writer.define("first")


def _shift(d: _Decode, side: Side, brought: SlotOperand) -> str:
    """Text of where the side's values of the lane's row begin in the vector that has the first of them, in bytes."""
    rows, first = d.rows, Axis("first", d.found.along.extent // d.count)
    own = alone(rows) | spread(Axis("row", rows.count), rows.ranges)
    whole = d.method.pieces == 1
    value = idx(0) if whole else Binary("floordiv", first, idx(side.run // d.count))
    at = placed(rows.point, own) | {"value": value}
    return f"{d.e.index(substitute(tiles.shift(side, d.found.along), at))} & {brought.vector - 1}"


def _look_up(d: _Decode, given: Given, point: Mapping[str, Expr]) -> dict[Expr, Expr]:
    """Loads the table entries of the current element's code into variables."""
    e, codes, found = d.e, d.found.codes, dict[Expr, Expr]()
    for k, (x, array) in enumerate(
        zip(codes.tables if codes else (), d.layout.tables, strict=True)
    ):
        place = substitute(_replaced(x.index[-1], given), dict(point))
        span = interval(x.index[-1])  # of what the variables stand for
        at = bare(e.index(e.position(place, array.count, x.tensor, span)))
        text = _value(f"(const {STORAGE[x.dtype]}*)(own + {array.offset}) + {at}", x.dtype)
        e.writer.write(f"const {e.values[x.dtype]} looked{k} = {text};")
        e.writer.define(f"looked{k}")
        found[x] = _held(e, f"looked{k}", x.dtype)
    return found


def _write_elements(d: _Decode, given: Given) -> None:
    """Decodes element by element."""
    e, w, found = d.e, d.e.writer, d.found
    dtype = found.matrix.dtype
    stored, size = STORAGE[dtype], d.method.run // dtype.itemsize
    w.write(f"mt::Pack<{stored}, {size}> elements;")
    w.write("memcpy(elements.value, words.value, sizeof(words.value));")
    w.write(f"mt::Pack<{d.kind}, {d.count}> values;")
    w.write("const idx run = at.run;")
    w.define("run")
    with e.vector(d.count):
        word = _value(f"elements.value + lane / {found.per}", dtype)
        w.write(f"const {e.values[dtype]} word = {word};")
        w.define("word")
        runs = found.along.extent // d.count
        column = add(mul(Axis("run", runs), idx(d.count)), lane_of(d.count))
        point = {**d.rows.point, found.along.name: column}
        given = {**given, found.matrix: _held(e, "word", dtype)}
        given |= _look_up(d, given, point)
        text = bare(e.body(_replaced(unrounded(found.factor), given), point))
        w.write(f"values[lane] = mt::cast<{d.kind}>({text});")


def _write_codes(d: _Decode, given: Given) -> None:
    """Unpacks codes in pairs, as integers and as floats; the rest of the decoding is element by element."""
    e, w, codes = d.e, d.e.writer, d.codes
    w.write(f"mt::Pack<uint32_t, {d.count // 2}> values;")
    with _each_pair(d, codes):
        w.write("float two[2];")
        w.write(f"const auto both = mt::codes<{_codes(codes)}>(words[w], i);")
        with e.vector(2):
            w.write("const float code = both.number(lane);")
            w.define("code")
            given = {**given, Cast(codes.value, DType.F32): _held(e, "code", DType.F32)}
            if codes.small_float is None:
                w.write("const int integer = both.integer(lane);")
                w.define("integer")
            name = "integer" if codes.small_float is None else "code"
            given[codes.value] = _held(e, name, codes.value.dtype)
            given |= _look_up(d, given, d.rows.point)
            factor = _replaced(unrounded(d.found.factor), given)
            w.write(f"two[lane] = {bare(e.body(factor, d.rows.point))};")
        w.write(f"values[w * {16 // codes.bits} + i] = mt::ptx::pair_of<{d.kind}>(two[0], two[1]);")


def _write_pairs(d: _Decode, given: Given) -> None:
    """Decodes in pairs throughout."""
    e, w, codes = d.e, d.e.writer, d.codes
    operand = in_pairs(d.found.factor, codes)
    assert operand is not None
    w.write(f"mt::Pack<uint32_t, {d.count // 2}> values;")
    texts: dict[Expr, str] = {}
    for both in _boths(operand):
        if both.value not in texts:
            texts[both.value] = w.fresh("both")
            text = bare(e.body(_replaced(both.value, given), d.rows.point))
            w.write(f"const uint32_t {texts[both.value]} = mt::both<{d.kind}>({text});")
    pairs = 16 // codes.bits  # of a word
    with w.open(f"for (idx w = 0; w < {d.method.run // 4}; ++w)", ["w"], fence=True) as loop:
        loop.pragma = "#pragma unroll"
        for i in range(pairs):
            code = f"mt::code_pair<{d.kind}, {i}, {_codes(codes)}>(words[w])"
            w.write(f"values[w * {pairs} + {i}] = {_spelled(operand, d.kind, texts, code)};")


@contextmanager
def _each_pair(d: _Decode, codes: Codes) -> Generator[None]:
    """A loop over each pair `i` of each word `w` of 4 bytes."""
    w = d.e.writer
    with (
        w.open(f"for (idx w = 0; w < {d.method.run // 4}; ++w)", ["w"], fence=True) as outer,
        w.open(f"for (idx i = 0; i < {16 // codes.bits}; ++i)", ["i"], fence=True) as inner,
    ):
        outer.pragma = inner.pragma = "#pragma unroll"
        yield


def _codes(c: Codes) -> str:
    """The template arguments that describe the codes."""
    if c.small_float is not None:
        return f"mt::f{c.bits}{c.small_float}"
    return f"{c.bits}, {c.flip}, {c.scale}, {c.offset}"


def _boths(operand: Operand) -> list[Both]:
    match operand:
        case Both():
            return [operand]
        case Pair(_, operands):
            return [b for o in operands for b in _boths(o)]
        case _:
            return []


def _spelled(operand: Operand, kind: str, texts: Mapping[Expr, str], code: str) -> str:
    match operand:
        case Code():
            return code
        case Both(value):
            return texts[value]
        case Pair(op, operands):
            inner = ", ".join(_spelled(o, kind, texts, code) for o in operands)
            return f"mt::ptx::{op}_x2<{kind}>({inner})"


def _replaced(e: Expr, by: Given) -> Expr:
    return by[e] if e in by else rebuild(e, lambda x: _replaced(x, by))


def _held(e: BlockEmitter, name: str, dtype: DType) -> Expr:
    """A load that stands for the variable `name`."""
    e.hold(name, name)
    return Load(Tensor(name, (), dtype), ())


def _value(pointer: str, dtype: DType) -> str:
    """Text of a stored element as a value."""
    if dtype in SMALL_FLOATS:
        return f"mt_load_{SMALL_FLOATS[dtype]}({pointer})"
    return f"*({pointer})"
