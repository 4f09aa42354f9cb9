"""The base class of all emitters: tensors in memory, a step's elements, the walk of the Plan.

An emitter translates a Plan to text; it decides nothing. A target's subclass defines how a stage's threads divide a step's region, and its
device headers define the names used here:
    idx                              the index type
    MT_POINTER(n)                    entry n of the launch's pointers
    workspace, scratch               char*: the call's workspace, the worker's on-chip memory
    MT_CHECK(i, extent, number)      i as idx; 0 and a failed call where it is not in [0, extent)
    mt_load_T(p), mt_store_T(p, x)   16-bit floats in memory, T = f16 or bf16, as float
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from monotile.analysis.affine import affine
from monotile.analysis.in_place import tables_of
from monotile.analysis.rounding import rounding_sensitive_operands
from monotile.analysis.states import old_values, steady_weights
from monotile.codegen.address import (
    Layout,
    base,
    coordinates,
    layout,
    part_number,
    place_axes,
    readable,
    stored,
)
from monotile.codegen.expression import Expressions
from monotile.codegen.functions import Base
from monotile.codegen.site import Point, Range, Site, Span, loop_axes, made_by, point_of, range_of
from monotile.codegen.spelling import SMALL_FLOATS, bare, combine, convert
from monotile.codegen.strips import as_read
from monotile.config import Options
from monotile.errors import PlanError
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    Tensor,
    axes_of,
    binary,
    idx,
    loads,
    substitute,
)
from monotile.ir.intervals import Interval, interval
from monotile.ir.program import Compute, Program, Scatter, ends_of, used
from monotile.plan.access import watched_tensors
from monotile.plan.nodes import Bound, Dim, Plan, Stage, Step
from monotile.plan.places import Place, Shared
from monotile.targets.target import Target

VALUES: Mapping[DType, str] = {
    DType.BOOL: "bool",
    DType.U8: "uint8_t",
    DType.I8: "int8_t",
    DType.I16: "int16_t",
    DType.I32: "int32_t",
    DType.I64: "int64_t",
    **dict.fromkeys(SMALL_FLOATS, "float"),
    DType.F32: "float",
    DType.F64: "double",
}
STORAGE: Mapping[DType, str] = VALUES | {t: f"uint{8 * t.itemsize}_t" for t in SMALL_FLOATS}


class Emitter(Expressions):
    """Holds one Program and one Plan; `checks` collects the messages of index checks. stored_if: text of the condition under which
    elements are stored, "" for none. weights: those that the launch does not change."""

    values = VALUES
    stored_if = ""

    def __init__(self, program: Program, plan: Plan, target: Target, options: Options) -> None:
        super().__init__(wide=plan.launch.index_bits == 64)
        self.program, self.plan, self.target, self.options = program, plan, target, options
        self.checks: list[str] = []
        self.computes = as_read(program, plan.places, plan.body)
        self.tables = tables_of(program)
        self.weights = steady_weights(program)
        given = self.weights.union(t.name for t in program.inputs)
        self.watched = watched_tensors(program, plan.places)
        self.sizes = program.by_value
        self.constant = given - old_values(program) - self.watched
        self.loop_axes = loop_axes(program)
        self._parameters: dict[str, Base] = {}  # the pointer parameters of the current function
        self._names: list[str] = []  # of all its pointers
        self._own: frozenset[str] = frozenset()
        self._asked: frozenset[str] = frozenset()
        self._task: tuple[Axis, ...] = ()
        self._origin = ""

    @abstractmethod
    def step(self, site: Site) -> None:
        """Write the step."""

    def check_width(self) -> None:
        """Called at the end: raises PlanError where an index may not fit the Plan's bits, so that no wrong kernel is emitted."""
        if self.overflow and not self.wide:
            raise PlanError("the Plan's indices have 32 bits, and some of its kernel need 64")

    # Memory.

    def read(self, e: Load) -> str:
        return self.load(e.tensor, *self.element(e))

    def element(self, e: Load) -> tuple[str, str]:
        """Base pointer and offset of the element that `e` loads from memory."""
        place = readable(self.plan.places[e.tensor.name], own=e.tensor.name in self._own)
        return self.address(e.tensor, e.index, place)

    def load(self, tensor: Tensor, pointer: str, offset: str) -> str:
        """Text of the value at an address."""
        if tensor.dtype in SMALL_FLOATS:
            return f"mt_load_{SMALL_FLOATS[tensor.dtype]}({plus(pointer, offset)})"
        return f"{pointer}[{bare(offset)}]"

    def store(self, dtype: DType, pointer: str, offset: str, value: str) -> str:
        """A statement that stores a value at an address of such elements."""
        if dtype in SMALL_FLOATS:
            return f"mt_store_{SMALL_FLOATS[dtype]}({plus(pointer, offset)}, {bare(value)});"
        return f"{pointer}[{bare(offset)}] = {bare(value)};"

    def address(self, tensor: Tensor, index: Sequence[Expr], place: Place) -> tuple[str, str]:
        """Base pointer (typed, a name) and offset in elements of `tensor` at `index` in `place`."""
        table = self.tables.get(tensor.name, 0)
        safe = [
            self.position(i, extent, tensor) for i, extent in zip(index, tensor.shape, strict=True)
        ]
        part = within(part_number(safe[:table], tensor.shape[:table]), tensor.shape[:table])
        pointer = self.pointer(tensor, place, part)
        return pointer, self.total(self.layout(tensor, place).offset(safe[table:]))

    def layout(self, tensor: Tensor, place: Place) -> Layout:
        """The layout of `tensor` without the table dimensions that it may have as a weight."""
        return layout(place, tensor.shape[self.tables.get(tensor.name, 0) :], self._task)

    def pointer(self, tensor: Tensor, place: Place, part: Expr) -> str:
        """The name of the typed base pointer, defined in the outermost block where it can be."""
        key = ("pointer", tensor.name, place, part)
        known = self.writer.known(key)
        if known is None:
            variables = self.variables(part) | place_axes(place)
            # an entry that a condition guards may not exist where it fails
            guarded = bool(self.facts) and bool(axes_of(part))
            home = self.writer.home(variables, memory=guarded)
            with self.writer.at(home):
                known = self.writer.fresh(f"{tensor.name}_")
                self._names.append(known)
                if home.depth == 1 and "scratch" not in variables:
                    self._parameters[known] = Base(tensor, place, part)
                else:
                    kind, text = self._kind(tensor), self._base(Base(tensor, place, part))
                    self.writer.write(f"{kind} const {known} = {text};")
            home.names[key] = known
        return known

    def _kind(self, tensor: Tensor) -> str:
        """The pointer type for `tensor`. For tensors that the host accesses meanwhile it is volatile, so that each access is made, once,
        where it is written, and is visible to all: for CUDA as `ld.relaxed.sys` and `st.relaxed.sys` (PTX ISA, memory consistency
        model)."""
        if tensor.name in self.sizes:
            return "mt_size" if tensor.dtype is DType.I64 else "mt_number"
        volatile = "volatile " if tensor.name in self.watched else ""
        constant = "const " if tensor.name in self.constant else ""
        return f"{volatile}{constant}{STORAGE[tensor.dtype]}*"

    def _base(self, b: Base) -> str:
        number = self.index(b.part)
        return f"({self._kind(b.tensor)})({base(b.place, '' if number == '0' else number)})"

    def position(self, i: Expr, extent: int, tensor: Tensor, span: Interval | None = None) -> Expr:
        """`i` as an expression without Loads; a data-dependent index is checked here, unless it is proven to be in range. span: the values
        that it has, if more is known of them than `i` says."""
        if not loads(i):
            return i
        key = ("position", i, extent, tensor.name)
        known = self.writer.known(key)
        if known is None:
            home = self.home(i, asked=True)
            with self.writer.at(home):
                known = self.writer.fresh("k")
                text = f"(idx)({bare(self.value(i))})"
                span = span or interval(i)
                if span is None or not span.inside(0, extent - 1):
                    number = self.check(f"index out of range for {tensor.name}, of extent {extent}")
                    text = f"MT_CHECK({bare(self.value(i))}, {extent}, {number})"
                self.writer.write(f"const idx {known} = {text};")
                self.writer.define(known)
            home.names[key] = known
        return Axis(known, extent)

    def check(self, message: str) -> int:
        """The number of the check with this message at the current statement."""
        where = f"{message}, at {self._origin}" if self._origin else message
        if where not in self.checks:
            self.checks.append(where)
        return self.checks.index(where)

    def place_variables(self, e: Load) -> frozenset[str]:
        place = readable(self.plan.places[e.tensor.name], own=e.tensor.name in self._own)
        task = (
            frozenset(a.name for a in self._task) if isinstance(place, Shared) else frozenset[str]()
        )
        return place_axes(place) | task

    def steady(self, e: Expr) -> bool:
        if not isinstance(e, Load) or not axes_of(e).issubset(self.loop_axes.values()):
            return False
        name = e.tensor.name  # an input may have fewer elements than its shape
        if name not in self.weights or name not in self.constant or any(map(loads, e.index)):
            return False
        spans = zip(map(interval, e.index), e.tensor.shape, strict=True)
        return all(s is not None and s.inside(0, n - 1) for s, n in spans)

    # A step's elements.

    def sites(self, stage: Stage, *, bounded: bool = True) -> Iterator[Site]:
        """Each step, with its task's coordinates c0, c1, ... as variables of an open block; `step` emits it. bounded: whether the
        scalars that bound it may be read yet."""
        self._own = frozenset(name for step in stage.steps for name in step.computes)
        self._asked = frozenset(
            name for own in self._own for name in rounding_sensitive_operands(self.computes[own])
        )
        self._task = coordinates(stage.grid)
        for step in stage.steps:
            before, anchor, rest = made_by(step, self.computes)
            self._origin = anchor.origin
            self.forget()
            ranges = tuple(self.range(dim, f"d{k}") for k, dim in enumerate(step.dims))
            spans = dict[str, Span]()
            if bounded and isinstance(anchor, Compute):
                spans = self._spans(step, anchor, self.point(anchor, ranges))
            if spans:
                ranges = tuple(self._bounded(r, anchor, spans) for r in ranges)
            yield Site(step, before, anchor, rest, ranges, self.point(anchor, ranges), spans)

    def _spans(self, step: Step, anchor: Compute, point: Point) -> dict[str, Span]:
        """Loads the bounds of a step. point: of the task, in which the axes that bounds depend on have one value."""
        extents = {a.name: a.extent for a in (*anchor.axes, *anchor.reduce)}
        ends = {t.name: t for t in ends_of(anchor)}
        out: dict[str, Span] = {}

        def end(name: str, b: Bound, extent: int) -> Axis:
            return self._end(Load(ends[name], tuple(start(*a) for a in b.at)), extent)

        def start(axis: str, run: int) -> Expr:
            here = point[axis]
            first: dict[str, Expr] = {a.name: idx(0) for a in axes_of(here) if a not in self._task}
            return affine(binary("floordiv", substitute(here, first), idx(run))).expr

        for b in step.bounds:
            n = extents[b.axis]
            first = end(b.first, b, n) if b.first else idx(0)
            out[b.axis] = Span(first, end(b.last, b, n + 1) if b.last else idx(n))
        return out

    def _end(self, load: Load, extent: int) -> Axis:
        """A variable with the value of `load`, which is less than `extent`."""
        variable = self.writer.fresh("live")
        text = bare(self.value(load))
        self.writer.write(f"const idx {variable} = (idx)({text});")
        self.writer.define(variable)
        return Axis(variable, extent)

    def _bounded(self, r: Range, anchor: Compute | Scatter, spans: Mapping[str, Span]) -> Range:
        """`r` without dead positions, where it is along one axis."""
        own = [a for a in (anchor.axes[p] for p in r.dim.axes) if a.extent > 1]
        span = spans.get(own[0].name) if len(own) == 1 else None
        return r if span is None or r.dim.lead else self.bounded(r, span)

    def bounded(self, r: Range, span: Span) -> Range:
        """`r` without at least some dead positions."""
        return r

    def range(self, dim: Dim, variable: str) -> Range:
        """The part of `dim` that the current task iterates over."""
        return range_of(dim, self._task, variable, lambda rest: bare(self.total(rest)))

    def point(self, anchor: Compute | Scatter, ranges: Sequence[Range]) -> dict[str, Expr]:
        """Every axis of the anchor, and every loop axis, as a function of the ranges' variables."""
        return point_of(anchor, ranges, self.loop_axes)

    def body(self, e: Expr, point: Mapping[str, Expr]) -> str:
        """Text of an expression over the axes of a step."""
        return self.root(substitute(e, dict(point)))

    def finish(self, site: Site, point: Mapping[str, Expr], text: str, dtype: DType) -> None:
        """Emits the store of the anchor's value at `point`, given as text in `dtype`, and the epilogue."""
        anchor = site.anchor
        if isinstance(anchor, Scatter):
            self._scatter(anchor, point, text)
            return
        later = [site.followers[k:] for k in range(len(site.followers) + 1)]
        for number, s in enumerate((anchor, *site.followers)):
            if isinstance(s, Scatter):
                self._answer(s, point, self.body(s.value, point))
                continue
            if number:
                text, dtype = self.body(s.body, point), s.body.dtype
            self.settle(s, point, text, dtype, used=any(s.out in used(f) for f in later[number]))

    def settle(
        self, s: Compute, point: Mapping[str, Expr], text: str, dtype: DType, *, used: bool
    ) -> None:
        """Stores the value of `s` at `point`, given as text in `dtype`. used: whether the step reads it as well."""
        text = self.made(s, text, dtype, used=used)
        self.put(s, point, text)

    def made(self, s: Compute, text: str, dtype: DType, *, used: bool) -> str:
        """Text of the value of `s`, given in `dtype`; from here on it is the current element of its tensor, if later statements read it."""
        text = self.as_stored(s.out, text, dtype, used=used)
        places = stored(self.plan.places[s.out.name])
        if used or len(places) + self.hands_on(s.out) > 1:
            variable = self.writer.fresh("x")
            self.writer.write(f"const {VALUES[s.out.dtype]} {variable} = {bare(text)};")
            self.writer.define(variable)
            self.hold(s.out.name, variable)
            text = variable
        return text

    def as_stored(self, t: Tensor, text: str, dtype: DType, *, used: bool) -> str:
        """Text of a value of `t`, given in `dtype`: rounded, unless the store rounds or no reader needs the exact rounding."""
        small = t.dtype in SMALL_FLOATS and dtype.compute is DType.F32
        exactly = t.name in self._asked or t.dtype.is_float8 or not self.options.excess_precision
        return text if small and not (used and exactly) else convert(text, dtype, t.dtype)

    def put(self, s: Compute, point: Mapping[str, Expr], text: str) -> None:
        """Emits the stores of the value of `s` at `point` to all its places, and its message."""
        index = [point[a.name] for a in s.axes]
        if self.hands_on(s.out):
            self.hand_on(s.out, index, text)
        for place in stored(self.plan.places[s.out.name]):
            self.write(s.out, index, place, text)

    def is_stored(self, tensor: Tensor) -> bool:
        """Whether anything but the current step may read `tensor`."""
        return bool(stored(self.plan.places[tensor.name])) or self.hands_on(tensor)

    def hands_on(self, tensor: Tensor) -> bool:
        """Whether `tensor` is sent as a message."""
        return False

    def hand_on(self, tensor: Tensor, index: Sequence[Expr], value: str) -> None:
        """Emits the code that sends an element of a message."""

    def write(self, tensor: Tensor, index: Sequence[Expr], place: Place, value: str) -> None:
        """Emits a store of `value` to the element of `tensor` at `index` in `place`."""
        pointer, offset = self.address(tensor, index, place)
        self.writer.write(self.live(self.store(tensor.dtype, pointer, offset, value)))

    def live(self, store: str) -> str:
        """`store`, under the condition for storing, if there is one."""
        return f"if ({self.stored_if}) {store}" if self.stored_if else store

    def _answer(self, s: Scatter, point: Mapping[str, Expr], text: str) -> None:
        """Emits an element's part of a full reduction to a predicate: a store to its flag, where the element decides it."""
        index = [substitute(i, dict(point)) for i in s.index]
        found = text if s.combiner == "any" else f"!({bare(text)})"
        for place in stored(self.plan.places[s.out.name]):
            pointer, offset = self.address(s.out, index, place)
            says = self.store(
                s.out.dtype, pointer, offset, "true" if s.combiner == "any" else "false"
            )
            with self.writer.open(f"if ({bare(found)})", fence=True):
                self.writer.write(self.live(says))

    def _scatter(self, s: Scatter, point: Mapping[str, Expr], text: str) -> None:
        index = [substitute(i, dict(point)) for i in s.index]
        for place in stored(self.plan.places[s.out.name]):
            value = text
            if s.combiner is not None:
                old = self.load(s.out, *self.address(s.out, index, place))
                value = combine(s.combiner, old, text, s.out.dtype)
            self.write(s.out, index, place, value)


def within(part: Expr, table: Sequence[int]) -> Expr:
    """`part` clamped to the entries of a table of pointers, also where its condition does not hold: a pointer is loaded before the
    condition is tested."""
    last = math.prod(table) - 1
    reach = interval(part)
    if reach is not None and reach.inside(0, last):
        return part
    return Binary("max", Binary("min", part, idx(last)), idx(0))


def plus(pointer: str, offset: str) -> str:
    return pointer if offset == "0" else f"{pointer} + {bare(offset)}"
