"""Scalar expressions as C text: one base for C and CUDA C++.

The axes of an expression are variables of the generated source, by name: callers substitute a step's axes first. Each distinct value is
named once (common subexpression elimination), in the outermost block where it can be computed, and a Load is executed once. Operands that a
Select or a logical operator may leave unevaluated stay under a condition if they access memory; others are computed eagerly, which
vectorises.

Names that the device headers define (`T` of f32 f64 i8 i16 i32 i64 u8; smaller floats compute in f32): `mt_<op>_<T>(...)` for every
operation that C has no operator for, with the semantics of `ir/expr.py`; `mt_round_f16` and so on (`SMALL_FLOATS`; of a float, to
float); `MT_INF`, `MT_NAN`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from monotile.analysis.affine import Affine, affine
from monotile.analysis.unconditional import executed
from monotile.codegen.spelling import SUFFIX, bare, binary, convert, literal, rounded, unary
from monotile.codegen.writer import Block, Writer
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    COMPARE,
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    children,
    known,
    loads,
    walk,
)
from monotile.ir.intervals import Interval, interval, learn, truth

LONGEST = 88  # characters of an expression before its parts get names
_SIGNS = {"add": "+", "sub": "-", "mul": "*"}
LEAST_DIVISOR = 2.0**-100
_INDEX = frozenset({"add", "sub", "mul", "floordiv", "mod"})


class Expressions(ABC):
    """Emits values into the blocks of `writer`; a target defines how memory is read.

    wide: index arithmetic runs in 64 bits (else in 32, and `overflow` tells afterwards whether that was enough). values: the C type that
    holds a value of each element type. in_vectors: whether a compiler vectorises innermost loops.
    """

    values: Mapping[DType, str]
    in_vectors = False

    def __init__(self, *, wide: bool) -> None:
        self.wide = wide
        self.overflow = False
        self.writer = Writer()
        self.registers: dict[str, str] = {}  # the variables of the current step's tensors
        self.divisors: dict[str, str] = {}  # the `mt::Divisor`s of those that divide often
        self.facts: dict[Expr, Interval] = {}
        self._variables: dict[Expr, frozenset[str]] = {}
        self._uses: dict[Expr, int] = {}

    @abstractmethod
    def read(self, e: Load) -> str:
        """Text of the value of an element in memory."""

    @abstractmethod
    def steady(self, e: Expr) -> bool:
        """Whether `e` is an element in memory that always exists and never changes."""

    @abstractmethod
    def place_variables(self, e: Load) -> frozenset[str]:
        """Variables that the address of `e` depends on besides those of its index."""

    # Values.

    def root(self, e: Expr) -> str:
        """Text of `e`, which is not part of a larger expression."""
        for node in set(walk(e)):
            for child in children(node):
                self._uses[child] = self._uses.get(child, 0) + 1
        return self.value(e)

    def value(self, e: Expr) -> str:
        """Text of `e`: a name or an expression in parentheses, of type `values[e.dtype]` (or the index type)."""
        known = self.writer.known(e)
        if known is not None:
            return known
        if self.facts and e.dtype is DType.BOOL:
            decided = truth(e, self.facts)
            if decided is not None:
                return "true" if decided else "false"
        match e:
            case Const():
                return literal(e)
            case Axis():
                return e.name
            case Load() if e.tensor.name in self.registers:
                return self.registers[e.tensor.name]
            case Load():
                return self.name(e, e.dtype, lambda _: self.read(e))
            case _ if is_index(e):
                return self.index(e)
            case Select(cond, then, otherwise):
                known_truth = truth(cond, self.facts)
                if known_truth is not None:
                    return self.value(then if known_truth else otherwise)
                if self._needs_branch(cond, then, otherwise):
                    return self._guarded(e, cond, then, otherwise)
            case Binary("and", a, b) if self.facts and truth(a, self.facts):
                return self.value(b)
            case Binary("and", a, b) if self.facts and truth(b, self.facts):
                return self.value(a)
            case Binary("and" | "or" as op, a, b) if self._needs_branch(a, b):
                true, false = Const(True, DType.BOOL), Const(False, DType.BOOL)
                sides = (b, false) if op == "and" else (true, b)
                return self._guarded(e, a, *sides)
            case _:
                pass
        home = self.home(e)
        if home is not self.writer.block or self._uses.get(e, 0) > 1:
            return self.name(e, e.dtype, self._operation)
        text = self._operation(e)
        return text if len(text) <= LONGEST else self.name(e, e.dtype, lambda _: text)

    def _needs_branch(self, cond: Expr, *sides: Expr) -> bool:
        """Whether one of `sides`, or the only one, loads what nothing has loaded. What the condition reads, or both sides do, is loaded here."""
        if not self.facts:
            both = set(executed(sides[0])).intersection(*map(executed, sides[1:]))
            always = {*executed(cond), *(both if len(sides) > 1 else ())}
            for x in dict.fromkeys(x for side in sides for x in loads(side) if x in always):
                self.value(x)
            self._read_steady(*sides)
        return any(map(self._touches, sides))

    def _read_steady(self, *sides: Expr) -> None:
        """Loads what always exists and does not change in the innermost loop: without a branch the select can be vectorised."""
        if not self.in_vectors:
            return
        for x in (x for side in sides for x in loads(side)):
            spans = (interval(i) for i in x.index)
            inside = zip(spans, x.tensor.shape, strict=True)
            there = all(s is not None and s.inside(0, n - 1) for s, n in inside)
            if there and self.home(x) is not self.writer.block:
                self.value(x)

    def name(self, e: Expr, dtype: DType, make: Callable[[Expr], str]) -> str:
        """`make(e)` under a name, in the outermost block where it can be computed."""
        home = self.home(e)
        variable = self.writer.fresh()
        with self.writer.at(home):
            text = make(e)
            if text.isidentifier():
                variable = text
            else:
                self.writer.write(f"const {self.values[dtype]} {variable} = {bare(text)};")
        home.names[e] = variable
        return variable

    def home(self, e: Expr, *, asked: bool = False) -> Block:
        """The block in which `e` is computed. asked: the current one, since `e` is checked there, even if it is loop-invariant."""
        read = (self._in_memory(x) and (asked or not self.steady(x)) for x in loads(e))
        return self.writer.home(self.variables(e), memory=bool(self.facts) or any(read))

    def variables(self, e: Expr) -> frozenset[str]:
        """The variables of the source that the value of `e` depends on."""
        found = self._variables.get(e)
        if found is None:
            match e:
                case Axis():
                    found = frozenset({e.name})
                case Load() if e.tensor.name in self.registers:
                    found = frozenset({self.registers[e.tensor.name]})
                case _:
                    inner = [self.variables(c) for c in children(e)]
                    found = frozenset[str]().union(*inner)
                    if isinstance(e, Load):
                        found |= self.place_variables(e)
            self._variables[e] = found
        return found

    def hold(self, tensor: str, variable: str) -> None:
        """From here on `variable` is the current element of `tensor`."""
        self.registers[tensor] = variable
        self._variables.clear()

    def forget(self) -> None:
        """Begins a new step: registers and uses of the last one are dropped."""
        self.registers.clear()
        self.divisors.clear()
        self._variables.clear()
        self._uses.clear()

    def _in_memory(self, e: Expr) -> bool:
        return isinstance(e, Load) and e.tensor.name not in self.registers

    def _touches(self, e: Expr) -> bool:
        """Whether evaluating `e` loads from memory anything that has not been loaded yet. Sizes are there everywhere."""
        if self.writer.known(e) is not None or known(e):
            return False
        return self._in_memory(e) or any(self._touches(c) for c in children(e))

    def _guarded(self, e: Expr, cond: Expr, then: Expr, otherwise: Expr) -> str:
        home = self.home(e)
        with self.writer.at(home):
            test = bare(self.value(cond))
            variable = self.writer.fresh()
            self.writer.write(f"{self.values[e.dtype]} {variable};")
            for head, side, holds in (
                (f"if ({test})", then, True),
                ("else", otherwise, False),
            ):
                with self.writer.open(head, fence=True), self.given(cond, holds):
                    self.writer.write(f"{variable} = {bare(self.value(side))};")
        home.names[e] = variable
        return variable

    @contextmanager
    def given(self, cond: Expr, holds: bool) -> Generator[None]:
        """Inside, `cond` is known to be `holds`."""
        before = self.facts
        self.facts = before | learn(cond, holds, before)
        yield
        self.facts = before

    def _operation(self, e: Expr) -> str:
        match e:
            case Select(cond, then, otherwise):
                text = f"({self.value(cond)} ? {self.value(then)} : {self.value(otherwise)})"
            case Cast(x, dtype):
                small = self.small(x) if dtype.is_float and x.dtype is DType.I64 else None
                text = convert(small or self.value(x), DType.I32 if small else x.dtype, dtype)
            case Unary(op, x):
                text = unary(op, self.value(x), x.dtype)
            case Binary("div", a, Const() as b) if _steady_divisor(b):
                text = f"mt_div_by_f32({bare(self.value(a))}, {bare(self.value(b))})"
            case Binary("div", a, b) if (by := self._divisor(b)) is not None:
                text = f"{by}.under({bare(self.value(a))})"
            case Binary(op, a, b) if op in COMPARE and is_index(a) and is_index(b):
                text = binary(op, self.index(a), self.index(b), a.dtype)
            case Binary(op, a, b):
                text = binary(op, self.value(a), self.value(b), a.dtype)
            case _:
                raise InternalError(f"no operation: {e}")
        if e.dtype in (DType.F16, DType.BF16) and isinstance(e, (Unary, Binary)):
            return rounded(text, e.dtype)
        return text

    def _divisor(self, e: Expr) -> str | None:
        """The `mt::Divisor` for float quotients by `e`; None if there is none."""
        x = e.x if isinstance(e, Cast) else e
        if not isinstance(x, Load) or not x.dtype.compute is e.dtype.compute is DType.F32:
            return None
        return self.divisors.get(x.tensor.name)

    # Indices.

    def index(self, e: Expr) -> str:
        """Text of an int64 expression without Loads, in the index type."""
        return self.total(affine(e))

    def total(self, a: Affine) -> str:
        """Text of a sum; terms available in an outer block are added up there."""
        self._watch(a)
        if not a.terms:
            return str(a.constant)
        homes = [(atom, k, self.home(atom)) for atom, k in a.terms]
        deepest = max((h for *_, h in homes), key=lambda h: h.depth)
        outer = Affine(tuple((x, k) for x, k, h in homes if h is not deepest), a.constant)
        inner = [self._term(x, k) for x, k, h in homes if h is deepest]
        if outer.terms:
            return _sum([self._named_total(outer), *inner])
        return _sum([*inner, *([str(a.constant)] if a.constant else [])])

    def _named_total(self, a: Affine) -> str:
        if len(a.terms) == 1 and a.terms[0][1] == 1 and not a.constant:
            return self._term(*a.terms[0])
        e = a.expr
        key = ("index", e)
        known = self.writer.known(key)
        if known is not None:
            return known
        home = self.home(e)
        with self.writer.at(home):
            text = self.total(a)
            variable = self.writer.fresh("o")
            self.writer.write(f"const idx {variable} = {bare(text)};")
        home.names[key] = variable
        return variable

    def _term(self, atom: Expr, coefficient: int) -> str:
        text = self._atom(atom)
        return text if coefficient == 1 else f"{text} * {coefficient}"

    def _atom(self, e: Expr) -> str:
        match e:
            case Axis():
                return e.name
            case Binary("floordiv" | "mod" as op, x, Const(value)):
                known = self.writer.known(("index", e))
                if known is not None:
                    return known
                home = self.home(e)
                with self.writer.at(home):
                    text = self._quotient(op, x, int(value))
                    variable = self.writer.fresh("o")
                    self.writer.write(f"const idx {variable} = {text};")
                home.names["index", e] = variable
                return variable
            case Binary("min" | "max" as op, a, b) if is_index(a) and is_index(b):
                return f"mt_{op}_idx({bare(self.index(a))}, {bare(self.index(b))})"
            case _ if is_index(e):
                raise InternalError(f"no index: {e}")
            case _:
                return self.small(e) or f"(idx){self.value(e)}"

    def small(self, e: Expr) -> str | None:
        """Text in the index type of an int64 expression, if 32 bits are known to hold it and all its subexpressions."""
        if is_index(e):
            return self.index(e)
        reach = interval(e, self.facts)
        if reach is None or not reach.inside(-(1 << 31), (1 << 31) - 1):
            return None
        known = self.writer.known(("small", e))
        if known is not None:
            return known
        home = self.home(e)
        with self.writer.at(home):
            text = self._small(e)
            if text is None or text.isidentifier():
                return text
            variable = self.writer.fresh("o")
            self.writer.write(f"const idx {variable} = {bare(text)};")
        home.names["small", e] = variable
        return variable

    def _small(self, e: Expr) -> str | None:
        match e:
            case Const(value):
                return str(int(value))
            case Cast(x) if x.dtype.is_float:
                return f"(idx)mt_to_int_{SUFFIX[x.dtype.compute]}({bare(self.value(x))})"
            case Binary("add" | "sub" | "mul" | "min" | "max" as op, x, y):
                a, b = self.small(x), self.small(y)
                if a is None or b is None:
                    return None
                if op in ("min", "max"):
                    return f"mt_{op}_idx({bare(a)}, {bare(b)})"
                return f"({a} {_SIGNS[op]} {b})"
            case _:
                return None

    def _quotient(self, op: str, x: Expr, divisor: int) -> str:
        text, range_ = self.index(x), interval(x, self.facts)
        if range_ is not None and range_.lo >= 0:
            unsigned = "uint64_t" if self.wide else "uint32_t"
            return f"(idx)(({unsigned}){text} {'/' if op == 'floordiv' else '%'} {divisor}u)"
        return f"mt_{op}_idx({bare(text)}, {divisor})"

    def _watch(self, a: Affine) -> None:
        """Records when a sum, or a part of it, may not fit the index type."""
        reach = abs(a.constant)
        for atom, coefficient in a.terms:
            known = interval(atom)
            if known is not None:
                reach += abs(coefficient) * max(abs(known.lo), abs(known.hi))
        if reach >= 1 << 31:
            self.overflow = True


def _steady_divisor(c: Const) -> bool:
    """Whether a quotient by `c` may be computed as products with 1 / c: floats, far from overflow and subnormals."""
    size = abs(float(c.value))
    return c.dtype.compute is DType.F32 and LEAST_DIVISOR <= size <= 1 / LEAST_DIVISOR


def is_index(e: Expr) -> bool:
    """Whether `e` is index arithmetic: axes and literals combined by + - * // % with literal divisors."""
    if e.dtype is not DType.I64:
        return False
    match e:
        case Axis() | Const():
            return True
        case Binary("floordiv" | "mod", a, Const(value)):
            return int(value) > 0 and is_index(a)
        case Binary("mul", a, b):
            return is_index(a) and is_index(b) and (isinstance(a, Const) or isinstance(b, Const))
        case Binary("add" | "sub" | "min" | "max", a, b):
            return is_index(a) and is_index(b)
        case _:
            return False


def _sum(terms: list[str]) -> str:
    if len(terms) == 1 and " * " not in terms[0]:
        return terms[0]
    return f"({' + '.join(terms)})".replace("+ -", "- ")
