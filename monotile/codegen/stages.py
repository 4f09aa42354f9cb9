"""The Plan as functions: one for every stage, and the body that calls them."""

import math
from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager

from monotile.codegen.address import loop_variable, readable
from monotile.codegen.base import Emitter
from monotile.codegen.functions import Base, Functions, Written
from monotile.codegen.profile import Profiling
from monotile.codegen.spelling import bare
from monotile.codegen.writer import Block, Writer
from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.expr import Load, idx
from monotile.ir.program import Program, looked_at, scalar, statements
from monotile.plan.nodes import Choose, Handoff, Plan, PlanNode, Repeat, Stage
from monotile.targets.target import Target


class StageEmitter(Emitter):
    """written: the functions so far. functions: the result of `join`. worker, outer: text of the worker's number, in a function and in
    the body."""

    worker: str
    outer: str

    def __init__(self, program: Program, plan: Plan, target: Target, options: Options) -> None:
        super().__init__(program, plan, target, options)
        self.written: list[Written] = []
        self.functions = Functions()
        self._scalars = {t.name: t for s in statements(program.body) for t in looked_at(s)}
        self.profiling = Profiling(plan, options, self.worker, self.outer)

    @contextmanager
    def function(
        self, name: str, axes: Sequence[str], given: Mapping[str, str]
    ) -> Generator[Block]:
        """The body of a function of this stage, as a separate text; gives its block.

        axes: of the Repeats around the stage. given: its other parameters, with their types.
        """
        self.writer = Writer()
        self._parameters, self._names, self.in_front = {}, [], 0
        loops = [loop_variable(a) for a in axes]
        with self.writer.open("", [*given, *loops], fence=True) as block:
            yield block
        pointers = [(n, f"{self._kind(b.tensor)} const", b) for n, b in self._parameters.items()]
        parameters = [*((v, "idx", v) for v in loops), *pointers]
        text = self.writer.text
        self.written.append(Written(name, text, given, parameters, self._names, self.in_front))

    def join(self, *, lean: bool = False) -> None:
        """Merges equal functions into one. lean: as `Functions` takes it."""
        self.functions = Functions(self.written, lean=lean)

    def grid(self, stage: Stage) -> list[str]:
        """Texts of the number of tasks along each tile axis; values of the call are read here, once a function."""
        out = [str(n) for n in stage.grid]
        for x in stage.live:
            size = bare(self.value(Load(scalar(x.size, DType.I64), ())))
            many = size if x.inner == 1 else f"{size} * {x.inner}"
            variable = self.writer.fresh("tasks")
            self.writer.write(f"const idx {variable} = (idx)(({many} + {x.tile - 1}) / {x.tile});")
            self.writer.define(variable)
            out[x.axis] = variable
        return out

    def write_call(self, name: str) -> None:
        """Emits the call of the function that computes stage `name`."""
        found, given = self.functions.call(name)
        texts = [self._base(x) if isinstance(x, Base) else x for x in given]
        note = "" if found.name == name else f"  // {name}"
        self.writer.write(f"{found.name}({', '.join(texts)});{note}")

    def stages(self) -> Iterator[tuple[Stage, tuple[str, ...]]]:
        """Every stage with the axes of the Repeats whose variables it may use: those around it, outermost first, and earlier ones there
        that may have ended early."""
        yield from _stages(self.plan.body, ())

    def walk(self, nodes: Sequence[PlanNode]) -> None:
        """Emits the Plan's body: hand-offs, calls of the stages, loops."""
        for node in nodes:
            match node:
                case Repeat(axis, extent, inner) if not node.ends_early:
                    variable = loop_variable(axis)
                    self.enter(node)
                    head = f"for (idx {variable} = 0; {variable} < {extent}; ++{variable})"
                    with self.writer.open(head, [variable]):
                        self.walk(inner)
                    self.leave(node)
                case Repeat():
                    self._repeat(node)
                case Choose(index, bodies, handoff):
                    self.wait(handoff)
                    choice = self.writer.fresh("choice")
                    self.writer.write(f"const int64_t {choice} = {bare(self.scalar(index))};")
                    self.tell(node, choice)
                    for number, inner in enumerate(bodies):
                        with self.writer.open(f"if ({choice} == {number})", fence=True):
                            self.walk(inner)
                case Stage():
                    with self.profiling.wait(self.writer, node):
                        self.wait(node.handoff, late=node.late)
                    self.call(node)

    def _repeat(self, loop: Repeat) -> None:
        """A loop that may end early; its variable stays defined after it."""
        w, variable = self.writer, loop_variable(loop.axis)
        self.enter(loop)
        w.write(f"idx {variable} = 0;")
        w.define(variable)
        self.wait(loop.handoff)
        if loop.count:
            w.write(f"const int64_t {variable}_count = {bare(self.scalar(loop.count))};")
        with w.open(f"for (;; ++{variable})", fence=True):
            goes_on = (
                self.scalar(loop.predicate) if loop.predicate else f"{variable} < {variable}_count"
            )
            more = w.fresh("more")
            w.write(f"const bool {more} = {variable} != {loop.extent} && {goes_on};")
            self.tell(loop, more)
            w.write(f"if (!{more}) break;")
            self.walk(loop.body)
            self.wait(loop.again)
        self.leave(loop)

    def scalar(self, name: str) -> str:
        """Text of a scalar's value, which all workers read alike."""
        tensor, place = self._scalars[name], readable(self.plan.places[name], own=False)
        return self.load(tensor, f"({self._base(Base(tensor, place, idx(0)))})", "0")

    def tell(self, node: Repeat | Choose, way: str) -> None:
        """Emits the notification of others that follow the Plan's control flow: whether there is another iteration, or which body runs."""

    def enter(self, loop: Repeat) -> None:
        """Emits the code right before a loop."""

    def leave(self, loop: Repeat) -> None:
        """Emits the code right after a loop."""

    @abstractmethod
    def wait(self, handoff: Handoff, *, late: bool = False) -> None:
        """Emits the worker's wait. late: it only arrives, and waits later."""

    @abstractmethod
    def call(self, stage: Stage) -> None:
        """Emits the stage's call."""


def product(counts: Sequence[str]) -> str:
    """Text of the product of counts, a literal where all are."""
    number = math.prod(int(c) for c in counts if c.isdigit())
    named = [c for c in counts if not c.isdigit()]
    return " * ".join([*named, *([str(number)] if number != 1 or not named else [])])


def _stages(
    nodes: Sequence[PlanNode], axes: tuple[str, ...]
) -> Iterator[tuple[Stage, tuple[str, ...]]]:
    for node in nodes:
        match node:
            case Stage():
                yield node, axes
            case Repeat(axis, _, inner):
                yield from _stages(inner, (*axes, axis))
                axes = (*axes, axis) if node.ends_early else axes
            case Choose(_, bodies):
                for inner in bodies:
                    yield from _stages(inner, axes)
