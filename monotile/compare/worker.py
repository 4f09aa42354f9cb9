"""The process of one job: `python -m monotile.compare.worker JOB`.

It compiles and checks the answer, reports that by a line, waits for a line, times, and writes an Outcome. In between its
parent may stop it, so that it does not disturb the timing of another process.
"""

import contextlib
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
import torch

import monotile
from monotile.compare.clock import Timer, in_graph_too
from monotile.compare.forms import FORMS
from monotile.compare.jobs import OURS, PROFILE, Absent, Bound, Job, Outcome, first_line
from monotile.compare.rivals import RIVALS
from monotile.errors import MonotileError
from monotile.examples import EXAMPLES
from monotile.frontends.torch.tf32 import tf32_of
from monotile.runtime.accuracy import error, exact, tensors
from monotile.runtime.models import load_model
from monotile.runtime.module import CompiledModule
from monotile.runtime.reference import Call, eager, random_inputs, to_device
from monotile.targets.detect import device_of

Timing = Callable[[Outcome], Outcome]


def prepare(job: Job) -> tuple[Outcome, Timing]:
    """The outcome without times, and the function that adds them. Raises Absent for a rival that is not available."""
    spec = EXAMPLES.get(job.network.spec, job.network.spec)
    loaded, call = load_model(spec, job.network.dtype, job.network.arguments)
    device = device_of(job.target, job.options)
    model, call = to_device(loaded, call, device)
    if not isinstance(model, torch.nn.Module):
        raise Absent("an exported program cannot be checked in float64: give the module instead")
    model.requires_grad_(False)
    given = random_inputs(call, seed=1)
    torch.set_grad_enabled(False)
    if job.way in (OURS, PROFILE):
        return _ours(job, model, given, device)
    right = exact(model, given)
    rival = RIVALS[job.way]
    form, adapted = FORMS[job.form](job.network, model, given)
    start = time.perf_counter()
    run = rival.make(job.network, form, adapted, device)
    found = _finished(run)
    took = time.perf_counter() - start
    about = about_device(device)
    about["versions"] |= rival.versions
    made = Outcome(compile=took if rival.compiles else None, **about)
    return checked(made, found, right, model), _timing(job, rival.clock(run, device))


def _timing(job: Job, timer: Timer) -> Timing:
    def with_times(outcome: Outcome) -> Outcome:
        found = timer(job.seconds)
        times = msgspec.structs.asdict(found) | {"kernels": outcome.kernels or found.kernels}
        return msgspec.structs.replace(outcome, **times)

    return with_times


def _ours(
    job: Job, model: torch.nn.Module, given: Call, device: torch.device
) -> tuple[Outcome, Timing]:
    args, kwargs = given
    recording = msgspec.structs.replace(job.options, profile=job.way == PROFILE)
    with tempfile.TemporaryDirectory(prefix="monotile-bench-") as folder:
        options = msgspec.structs.replace(recording, cache_dir=folder)

        def compiled() -> CompiledModule:
            return monotile.compile(model, args, kwargs, target=job.target, options=options)

        start = time.perf_counter()
        fast = compiled()
        found = _finished(lambda: fast(*args, **kwargs))
        first = time.perf_counter()
        if job.way == OURS:
            compiled()
        again = time.perf_counter()
    right = exact(model, given)
    least = fast.work
    bound = Bound(least.moved, sum(least.operations.values()), least.seconds(fast.target))
    about: dict[str, Any] = {"target": fast.target.name, "bound": bound, "kernels": fast.kernels}
    about |= about_device(device)
    limit = may_err(error(eager(model, given), right), model, device, options)
    made = Outcome(compile=first - start, again=again - first, **about)
    outcome = checked(made, found, right, model, limit)
    if job.way == PROFILE:
        return outcome, lambda o: _profiled(o, job, fast, given)
    return outcome, _timing(job, in_graph_too(partial(fast, *args, **kwargs), device, fast.kernels))


def _profiled(outcome: Outcome, job: Job, fast: CompiledModule, given: Call) -> Outcome:
    """Writes the profile of one warm call into the job's folder."""
    folder = Path(job.folder or ".")
    folder.mkdir(parents=True, exist_ok=True)
    args, kwargs = given
    for _ in range(5):
        fast(*args, **kwargs)
    seen = fast.profile(*args, **kwargs)
    stem = "-".join("".join(c if c.isalnum() else " " for c in str(job.network)).split())
    (folder / f"{stem}-stages.txt").write_text(seen.table() + "\n")
    (folder / f"{stem}-trace.json").write_text(seen.trace())
    with contextlib.suppress(MonotileError):  # without matplotlib there is no picture
        seen.timeline(folder / f"{stem}-timeline.png")
    return outcome


def may_err(
    usual: float, model: torch.nn.Module, device: torch.device, options: monotile.Options
) -> float:
    """How far off ours may be, where eager PyTorch errs by `usual`: half as much again; in float32 as much as TF32 does, where that is allowed."""
    wide = not {p.dtype for p in model.parameters()} & {torch.float16, torch.bfloat16}
    rounded = wide and device.type == "cuda" and any(tf32_of(options.tf32))
    return max(1.5 * usual, 1e-3 if rounded else 0.0)


def checked(
    outcome: Outcome, found: Any, right: Any, model: torch.nn.Module, limit: float = 0.0
) -> Outcome:
    """The outcome with its error. Raises if the error exceeds `limit` or, without one, the rounding of the network's dtypes.

    A rival may round as PyTorch does by default: convolutions and cuDNN's recurrences of float32 run in TF32.
    """
    away = error(found, right)
    dtypes = {p.dtype for p in model.parameters()}
    rounding = 5e-2 if torch.bfloat16 in dtypes else 1e-2 if torch.float16 in dtypes else 1e-3
    allowed = max(limit, 1e-5, last_place(found)) if limit else rounding
    if not away <= allowed:
        raise MonotileError(
            f"wrong answer: the error is {away:.1e}, at most {allowed:.1e} is allowed"
        )
    return msgspec.structs.replace(outcome, error=away)


def last_place(found: Any) -> float:
    """The relative error of a result that is one unit in the last place off: of a single number eager PyTorch's error is luck, of many the
    errors average, so it is divided by the root of their number. The largest over all results."""
    floats = [x for x in tensors(found) if x.is_floating_point() and x.numel()]
    return max((torch.finfo(x.dtype).eps / x.numel() ** 0.5 for x in floats), default=0.0)


def _finished(call: Callable[[], Any]) -> Any:
    found = call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return found


def about_device(device: torch.device) -> dict[str, Any]:
    """Its name, and the versions of all that can change a time."""
    versions = {
        "monotile": monotile.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    if device.type != "cuda":
        return {
            "device": f"{_processor()}, {os.cpu_count()} processors",
            "versions": versions,
        }
    versions["cuda"] = torch.version.cuda or ""
    return {"device": torch.cuda.get_device_name(device), "versions": versions}


def _processor() -> str:
    """The CPU's model, as Linux names it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other prints must not mix with the outcomes
    job = msgspec.json.decode(sys.argv[1], type=Job)
    try:
        outcome, timing = prepare(job)
        _say(answers, outcome)
        if sys.stdin.readline():  # else the parent is gone
            _say(answers, timing(outcome))
    except Absent as problem:
        _say(answers, Outcome(failure=str(problem), absent=True))
    except Exception as problem:  # any failure of a rival is reported
        words = str(problem) if isinstance(problem, MonotileError) else first_line(problem)
        _say(answers, Outcome(failure=words))
    answers.flush()
    os._exit(0)  # skip the clean-up of libraries, which may hang or fail


def _say(answers: IO[bytes], outcome: Outcome) -> None:
    answers.write(msgspec.json.encode(outcome) + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
