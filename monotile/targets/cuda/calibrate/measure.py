"""All figures of the current GPU that `monotile calibrate` measures."""

from collections.abc import Callable

from monotile.config import Options
from monotile.targets.calibration import Machine, Measured, flat, judge, replaced
from monotile.targets.cuda.calibrate.probes import Probes
from monotile.targets.cuda.calibrate.products import fitted_constants, sweep, timed
from monotile.targets.cuda.detect import known_device
from monotile.targets.cuda.devices import current_device, figures_of, machine_of
from monotile.targets.cuda.target import GpuFigures


def machine() -> Machine:
    """The current GPU. Raises TargetError where there is none that Monotile compiles for."""
    return machine_of(known_device(current_device()))


def measure(options: Options, say: Callable[[str], None]) -> dict[str, Measured]:
    """Its figures, by their dotted names. say: a callback for progress messages. Raises TargetError."""
    shipped, _ = figures_of(known_device(current_device()))
    probes = Probes(shipped.target, options)
    found = dict(probes.measure(say))
    found |= latency(probes.chase(), shipped)
    used = {r.name: r.new for r in judge(flat(shipped), found) if not r.why_not}
    target = replaced(shipped, used).target
    chosen = sweep(target)
    times = timed(chosen, target, say, options)
    say("fitting the cost model")
    return found | fitted_constants(chosen, times, target)


def latency(chase: Measured, shipped: GpuFigures) -> dict[str, Measured]:
    """The model's latency, which is longer than one load's: scaled by the ratio of both where both are known."""
    if shipped.chase_seconds is None:
        why = "the figures do not say what one load took on the machine that they are of"
        return {"latency_seconds": Measured(chase.value, why)}
    scaled = shipped.latency_seconds * chase.value / shipped.chase_seconds
    return {
        "latency_seconds": Measured(scaled, chase.why_not),
        "chase_seconds": Measured(chase.value, chase.why_not),
    }
