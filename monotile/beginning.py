"""Where the passes begin: a model as tensor expressions, and what is known of it and of the compilation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from monotile.analysis.pruning.facts import Facts, Zeros
from monotile.cache import key
from monotile.choice.chooser import MODEL, Chooser, Replay
from monotile.choice.spec import Spec
from monotile.config import Options
from monotile.frontends.torch.callables import noted_parameters
from monotile.frontends.torch.capture import Captured, to_program
from monotile.frontends.torch.export import Exported
from monotile.frontends.torch.orders import in_memory_order
from monotile.frontends.torch.sizes.ranges import ranges_of
from monotile.frontends.torch.tf32 import STRICT, Tf32, tf32_of
from monotile.frontends.torch.training import is_in_eval
from monotile.passes.programs import ProgramState
from monotile.plan.nodes import Plan
from monotile.runtime.fingerprint import exported_key
from monotile.runtime.zeros import ascending_in, zeros_of
from monotile.targets.target import Target
from monotile.transform.iterate import Iterate
from monotile.transform.layout.align_axes import Order


@dataclass(frozen=True)
class Given:
    """What a compilation does not decide itself. plan: used instead of scheduling. choices: followed on the way. iterate: how the model becomes
    the body of a loop. facts: what is known of the parameters' values; nothing unless the model is to be specialised. ascending: as of
    `ProgramState`."""

    plan: Plan | None = None
    choices: Spec | None = None
    iterate: Iterate | None = None
    facts: Facts = field(default_factory=dict[str, Zeros])
    ascending: frozenset[str] = frozenset()


class Sized(NamedTuple):
    """An exported model for sizes of a class. exported: as it came. plain: in functional ATen. most: of symbols of dimensions, what the kernel is for at most. tf32: where products of
    float32 may be of TF32."""

    exported: Exported
    plain: Exported
    most: Mapping[str, int]
    tf32: Tf32


def tf32_for(target: Target, options: Options) -> Tf32:
    """Where products may be of TF32: nowhere without tensor cores."""
    return tf32_of(options.tf32) if "mma.sync" in target.instructions else STRICT


def facts_for(exported: Exported, options: Options) -> Facts:
    """What a specialised model may rely on."""
    return zeros_of(exported.state_dict) if options.specialise else {}


def ascending_for(exported: Exported, target: Target) -> frozenset[str]:
    """Parameters that the target's tensor cores may take for places among four: none are looked at where it has no such."""
    return ascending_in(exported.state_dict) if "wgmma.sp" in target.instructions else frozenset()


def key_for(exported: Exported, target: Target, options: Options, given: Given) -> str | None:
    """Of what is compiled, whatever the class of sizes; None if it cannot be identified exactly."""
    base = exported_key(exported, target, options, given.plan, given.choices, given.iterate)
    base = key(base, repr(noted_parameters(exported.graph_module))) if base else base
    base = key(base, given.facts) if base and given.facts else base
    base = key(base, sorted(given.ascending)) if base and given.ascending else base
    tf32 = tf32_for(target, options)
    base = key(base, *tf32) if base and any(tf32) else base
    ranges = ranges_of(exported)
    base = key(base, "in eval mode") if base and is_in_eval(exported.graph_module) else base
    return key(base, ranges) if base and (ranges.conditions or ranges.fixed) else base


def captured_for(model: Sized, target: Target) -> tuple[Captured, dict[str, Order]]:
    """The model as tensor expressions, and the order in memory of those inputs and parameters that are not read row by row."""
    captured = to_program(model.exported, model.plain, model.most, model.tf32)
    return in_memory_order(captured, model.exported) if target.has.any_order else (captured, {})


def beginning(
    captured: Captured, orders: Mapping[str, Order], target: Target, options: Options, given: Given
) -> ProgramState:
    """Where the passes begin."""
    return ProgramState(
        captured.program,
        options,
        target,
        captured.constants,
        frozenset(captured.parameters),
        chooser=_chooser(given.choices),
        iterate=given.iterate,
        facts={n: z.permuted(orders[n]) if n in orders else z for n, z in given.facts.items()},
        ascending=given.ascending - orders.keys(),
    )


def _chooser(choices: Spec | None) -> Chooser:
    """A new one, as it is for one compilation."""
    return MODEL if choices is None else Replay(choices)
