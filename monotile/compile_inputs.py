"""The inputs of a compilation: the captured model as the first state of the passes, what its caller has fixed, and its cache key."""

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
from monotile.runtime.parameter_values import ascending_in, zeros_of
from monotile.targets.target import Target
from monotile.transform.iterate import Iterate
from monotile.transform.layout.align_axes import Order


@dataclass(frozen=True)
class Presets:
    """What is fixed before the compilation. plan: used instead of scheduling. choices: recorded choices to follow. iterate: how the model becomes
    the body of a loop. facts: the known zeros of parameters; empty unless the model is to be specialised. ascending: as in `ProgramState`."""

    plan: Plan | None = None
    choices: Spec | None = None
    iterate: Iterate | None = None
    facts: Facts = field(default_factory=dict[str, Zeros])
    ascending: frozenset[str] = frozenset()


class SizedModel(NamedTuple):
    """An exported model for one size class. exported: the graph of `torch.export`. plain: the same in functional ATen. most: the upper bounds of
    the symbols of dimensions. tf32: which float32 products may use TF32."""

    exported: Exported
    plain: Exported
    most: Mapping[str, int]
    tf32: Tf32


def tf32_for(target: Target, options: Options) -> Tf32:
    """Which products may use TF32: none on a target without tensor cores."""
    return tf32_of(options.tf32) if "mma.sync" in target.instructions else STRICT


def facts_for(exported: Exported, options: Options) -> Facts:
    """The zeros of parameters that a specialised kernel may rely on; empty without `Options.specialise`."""
    return zeros_of(exported.state_dict) if options.specialise else {}


def ascending_for(exported: Exported, target: Target) -> frozenset[str]:
    """Names of the parameters that can be the metadata of 2:4 sparse operands; empty if the target has no sparse tensor cores."""
    return ascending_in(exported.state_dict) if "wgmma.sp" in target.instructions else frozenset()


def key_for(exported: Exported, target: Target, options: Options, given: Presets) -> str | None:
    """The cache key of the compilation, the same for all size classes; None if the model cannot be identified exactly."""
    base = exported_key(exported, target, options, given.plan, given.choices, given.iterate)
    base = key(base, repr(noted_parameters(exported.graph_module))) if base else base
    base = key(base, given.facts) if base and given.facts else base
    base = key(base, sorted(given.ascending)) if base and given.ascending else base
    tf32 = tf32_for(target, options)
    base = key(base, *tf32) if base and any(tf32) else base
    ranges = ranges_of(exported)
    base = key(base, "in eval mode") if base and is_in_eval(exported.graph_module) else base
    return key(base, ranges) if base and (ranges.conditions or ranges.fixed) else base


def captured_for(model: SizedModel, target: Target) -> tuple[Captured, dict[str, Order]]:
    """The model as a Program, and the memory orders of those inputs and parameters that are not read row-major."""
    captured = to_program(model.exported, model.plain, model.most, model.tf32)
    return in_memory_order(captured, model.exported) if target.has.any_order else (captured, {})


def initial_state(
    captured: Captured,
    orders: Mapping[str, Order],
    target: Target,
    options: Options,
    given: Presets,
) -> ProgramState:
    """The state that the first pass gets."""
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
    """The Chooser of one compilation."""
    return MODEL if choices is None else Replay(choices)
