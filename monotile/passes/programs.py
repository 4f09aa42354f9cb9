"""What the passes from Program to Program work on, and each pass as a function of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from monotile.analysis.pruning.facts import Facts, Zeros, facts_of
from monotile.analysis.pruning.specialised import Specialised
from monotile.choice.chooser import MODEL, Chooser
from monotile.config import Options
from monotile.ir.printer import show
from monotile.ir.program import (
    Compute,
    Loop,
    Program,
    Scatter,
    Statement,
    state_names,
    statements,
)
from monotile.ir.signature import OutputLeaf
from monotile.kernels.draft import Context
from monotile.passes.table import NOTHING
from monotile.schedule.tree import build, seconds
from monotile.targets.target import Target
from monotile.transform.iterate import Iterate, iterate
from monotile.transform.layout.align_axes import Order
from monotile.transform.layout.parameters import arrange
from monotile.transform.legalise.stack_results import stack_results
from monotile.transform.simplify.fold import fold
from monotile.transform.simplify.simplify import simplify
from monotile.transform.sparse.one_hot import ascending_in, gather_kept
from monotile.transform.specialise import NOTHING_REMOVED, specialise

Constants = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class ProgramState:
    """program:  as the passes so far have left it.
    options:    of the compilation.
    target:     None where only passes for any target are run.
    constants:  values that the graph holds, by part name; folding adds its own.
    parameters: parts of weights that the caller holds.
    results:    where each captured result is in the Program's; () before `stack_results`.
    orders:     of parameters that are to be moved: dimension k in memory is `order[k]` of the captured one.
    context:    what cutting a Program into tasks has found so far; None before the pass of that name.
    chooser:    who is asked where there are several ways.
    iterate:    how the Program is to become the body of a loop; None where it is not to.
    facts:      what is known of the parameters' values, in the order of their dimensions in the Program; nothing where nobody asked.
    ascending:  parameters of which each byte holds two pairs of 2-bit numbers that ascend; none where the target has no use for it.
    specialised: what was removed because of them, and what that relies on.
    """

    program: Program
    options: Options
    target: Target | None = None
    constants: Constants = field(default_factory=dict[str, np.ndarray[Any, Any]])
    parameters: frozenset[str] = frozenset()
    results: tuple[OutputLeaf, ...] = ()
    orders: Mapping[str, Order] = field(default_factory=dict[str, Order])
    context: Context | None = None
    chooser: Chooser = MODEL
    iterate: Iterate | None = None
    facts: Facts = field(default_factory=dict[str, Zeros])
    ascending: frozenset[str] = frozenset()
    specialised: Specialised = NOTHING_REMOVED

    def show(self) -> str:
        """The Program as text."""
        return show(self.program)

    def changed(self, before: "ProgramState") -> str:
        """How many statements are others now, and what else is new."""
        if self is before:
            return NOTHING
        words = [_statements(before.program, self.program)]
        if more := len(self.constants) - len(before.constants):
            words.append(f"{more} constants more")
        if self.orders != before.orders:
            words.append(f"{len(self.orders)} parameters to be moved")
        if self.specialised is not before.specialised:
            words.append(f"{len(self.specialised.gathered)} parameters smaller")
        return ", ".join(w for w in words if w) or NOTHING


Run = Callable[[ProgramState], ProgramState]
Watch = Callable[[str, Program], None]


def rewrite(f: Callable[[Program], Program]) -> Run:
    """A pass over the Program alone."""
    return lambda s: replace(s, program=f(s.program))


def rewrite_by_options(f: Callable[[Program, Options], Program]) -> Run:
    """A pass over the Program that the options have a say in."""
    return lambda s: replace(s, program=f(s.program, s.options))


def rewrite_by_choice(f: Callable[[Program, Options, Chooser], Program]) -> Run:
    """A pass over the Program that tries several ways."""
    return lambda s: replace(s, program=f(s.program, s.options, s.chooser))


def rewrite_for_target(f: Callable[[Program, Target], Program]) -> Run:
    """A pass over the Program for a target."""
    return lambda s: replace(s, program=f(s.program, target_of(s)))


def rewrite_if_for_target(f: Callable[[Program, Target | None], Program]) -> Run:
    """A pass over the Program for a target, if there is one yet."""
    return lambda s: replace(s, program=f(s.program, s.target))


def rewrite_by_cost(f: Callable[[Program, Target, Context], Program]) -> Run:
    """A pass that asks the cost model how long a Program takes."""
    return lambda s: replace(s, program=f(s.program, target_of(s), context_of(s)))


def fold_constants(s: ProgramState) -> ProgramState:
    """`fold`, whose arrays are constants as well."""
    program, constants = fold(s.program, s.constants)
    return replace(s, program=program, constants=constants)


def specialise_parameters(s: ProgramState) -> ProgramState:
    """`specialise`, which says what is left of the parameters; constants are gathered here."""
    program, report = specialise(s.program, {**s.facts, **facts_of(s.constants)})
    if program is s.program:
        return s
    constants = dict(s.constants)
    for name in constants.keys() & report.gathered.keys():
        for d, kept in report.gathered[name].kept:
            constants[name] = np.take(constants[name], kept, axis=d)
    report = report.of(s.parameters)
    return replace(s, program=simplify(program, s.options), constants=constants, specialised=report)


def keep_few(s: ProgramState) -> ProgramState:
    """`gather_kept`, which says on which parameters' values it relies."""
    program = gather_kept(s.program, s.ascending)
    if program is s.program:
        return s
    relied = tuple(sorted(ascending_in(program) & s.parameters))
    report = msgspec.structs.replace(s.specialised, ascending=relied)
    return replace(s, program=program, specialised=report)


def repeat(s: ProgramState) -> ProgramState:
    """The Program as the body of a loop, if it is to be one."""
    return s if s.iterate is None else replace(s, program=iterate(s.program, s.iterate))


def stack(s: ProgramState) -> ProgramState:
    """`stack_results`, which says where the captured results are now."""
    program, results = stack_results(s.program)
    return replace(s, program=program, results=results)


def arrange_parameters(s: ProgramState) -> ProgramState:
    """`arrange`, which says in what order the caller's tensors have to lie."""
    movable = s.parameters - {*state_names(s.program)}
    program, orders = arrange(s.program, target_of(s), movable)
    return replace(s, program=program, orders=orders)


def with_context(s: ProgramState) -> ProgramState:
    """An empty `Context`: it depends on the weights' tables and the target."""
    return replace(s, context=Context.of(s.program, target_of(s), s.chooser))


def of_programs(watch: Watch | None) -> Callable[[str, ProgramState], None] | None:
    """What a pass's name and product are told of which `watch` wants the Program alone."""
    return None if watch is None else lambda name, s: watch(name, s.program)


def target_of(s: ProgramState) -> Target:
    """The target, where a pass for one is run."""
    assert s.target is not None
    return s.target


def context_of(s: ProgramState) -> Context:
    """The context, once there is one."""
    assert s.context is not None
    return s.context


def guess(s: ProgramState) -> float:
    """Seconds that its schedule takes, by the cost model, once the passes have been run."""
    return seconds(build(s.program, context_of(s)), target_of(s))


def _statements(before: Program, after: Program) -> str:
    """In what two Programs differ; "" for equal ones."""
    if before == after:
        return ""
    old, new = (list(map(_own, statements(p.body))) for p in (before, after))
    if len(old) != len(new):
        return f"{len(old)} -> {len(new)} statements"
    others = sum(x != y for x, y in zip(old, new, strict=True))
    return f"{others} of {len(new)} statements" if others else "its weights or results"


def _own(s: Statement) -> object:
    """What is a statement's own, without those that it holds."""
    match s:
        case Compute() | Scatter():
            return s
        case Loop():
            return s.axis, s.carried, s.stacked
        case _:
            return s.outs
