"""Reads and checks a Plan that the user passes to `compile` in place of scheduling."""

from pathlib import Path

import msgspec

from monotile.errors import PlanError, VerificationError
from monotile.ir.program import Compute, Program, Scatter, statements
from monotile.kernels.registry import read_plan
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan
from monotile.plan.walk import stages_in
from monotile.targets.target import Target


def load_plan(plan: Plan | str | Path) -> Plan:
    """`plan`, or the Plan in the JSON file that it names. Raises PlanError where there is no such file, or no Plan in it."""
    if isinstance(plan, Plan):
        return plan
    try:
        return read_plan(Path(plan).read_bytes())
    except (OSError, LookupError, msgspec.DecodeError) as error:
        raise PlanError(f"{plan} holds no Plan: {error}") from error


def check_given(plan: Plan, program: Program, target: Target) -> None:
    """Raises PlanError where `plan` is for another target, worker count or Program, or is not valid for this one."""
    launch = plan.launch
    if plan.target != target.name:
        raise PlanError(f"the Plan is for {plan.target}, and the target is {target.name}")
    if launch.workers != target.workers:
        raise PlanError(
            f"the Plan is for {launch.workers} workers, and the target has {target.workers}:"
            f" Options(workers={launch.workers}) compiles for as many, where there are so many"
        )
    if launch.threads != target.threads:
        raise PlanError(
            f"the Plan's workers have {launch.threads} threads, and the target's {target.threads}"
        )
    for what, given, own in (
        ("inputs", plan.inputs, tuple(t.name for t in program.inputs)),
        ("outputs", plan.outputs, tuple(t.name for t in program.results)),
        ("weights", plan.weights, tuple(part for w in program.weights for part in w.parts)),
        ("statements", tuple(sorted(_made(plan))), tuple(sorted(_defined(program)))),
        ("tensors with a place", (), tuple(sorted(_placed(program) - plan.places.keys()))),
    ):
        if given != own:
            raise PlanError(f"the Plan is for another Program: {_difference(what, given, own)}")
    try:
        verify(plan, program, target)
    except VerificationError as error:
        raise PlanError(f"the Plan does not fit this Program: {error}") from error
    except LookupError as error:  # the check assumes that a scheduler has made the Plan
        raise PlanError(
            f"the Plan does not fit this Program: nothing is there for {error}"
        ) from error


def _made(plan: Plan) -> list[str]:
    """The tensors that the Plan's steps compute."""
    steps = (step for stage in stages_in(plan.body) for step in stage.steps)
    return [name for step in steps for name in step.computes]


def _defined(program: Program) -> list[str]:
    return [s.out.name for s in statements(program.body) if isinstance(s, (Compute, Scatter))]


def _placed(program: Program) -> set[str]:
    held = {t.name for t in program.inputs} | {w.tensor.name for w in program.weights}
    return held | {*_defined(program)}


def _difference(what: str, given: tuple[str, ...], own: tuple[str, ...]) -> str:
    """The first names that only one of the two has, or a difference of order."""
    extra, missing = ([n for n in a if n not in b] for a, b in ((given, own), (own, given)))
    if not extra and not missing:
        return f"its {what} are the same in another order"
    found = [f"{words} {', '.join(names[:3])}" for words, names in (("it has", extra), ("it lacks", missing)) if names]  # fmt: skip
    return f"of {what}, {' and '.join(found)}"
