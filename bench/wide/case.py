"""The process of one network at one dtype and batch: `python -m bench.wide.case CASE`.

It compiles while other processes do, and takes its turn on the GPU for whatever runs there: the first calls of what torch.compile has
made, the answers in float64, and the timings, each of a replayed CUDA graph. An Outcome is written as soon as it is known, ours last: a
kernel that fails may take the process with it. On a CPU a process has one way to run the network, and is alone on the machine.
"""

import contextlib
import copy
import faulthandler
import fcntl
import importlib
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

import monotile
from bench.wide.networks import NETWORKS
from monotile.compare.forms import FORMS
from monotile.compare.jobs import OURS, Absent, Bound, Job, Outcome, first_line
from monotile.compare.rivals import RIVALS
from monotile.compare.worker import about_device, checked, may_err
from monotile.errors import MonotileError
from monotile.runtime.accuracy import error, exact
from monotile.runtime.measure import Times, graphed, measure
from monotile.runtime.module import CompiledModule
from monotile.runtime.reference import Call, eager, random_inputs, to_device
from monotile.targets.detect import device_of

LEAST = 5  # timings behind a median
USABLE = 5e-2  # the most that PyTorch's own error may be for others to be compared with it
Run = Callable[[], Any]
Made = tuple[Run, Outcome]  # what to time, and what is known of it


class Case(msgspec.Struct, frozen=True):
    """jobs: the ways to run one network. turn: the file whose lock is the turn on the GPU. limit: seconds of a turn. answers:
    the file to which each job's outcome is added, a line each."""

    jobs: list[Job]
    turn: str
    limit: float
    answers: str


class Answer(msgspec.Struct, frozen=True):
    job: Job
    outcome: Outcome


@contextlib.contextmanager
def turn_of(case: Case) -> Generator[None]:
    """Waits for the turn on the GPU. The system ends it with the process; one that is over the limit ends the process."""
    with Path(case.turn).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        faulthandler.dump_traceback_later(case.limit, exit=True)
        try:
            yield
            if torch.cuda.is_available():
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
        finally:
            faulthandler.cancel_dump_traceback_later()


def compiled(model: torch.nn.Module, call: Call, case: Case) -> Run:
    """`torch.compile` of the model after its first call, of which only the graphs themselves run in turns."""
    inductor: Any = importlib.import_module("torch._inductor.compile_fx")

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        made: Any = inductor.compile_fx(graph, inputs)

        def graph_in_turn(*args: Any) -> Any:
            if not first:
                return made(*args)
            with turn_of(case):
                return made(*args)

        return graph_in_turn

    first = True
    run: Any = torch.compile(model, backend=backend)
    run(*call[0], **call[1])
    first = False
    return partial(run, *call[0], **call[1])


def prepared(job: Job, case: Case, model: torch.nn.Module, given: Call) -> Made:
    """Compiled, but for our first call. `Outcome.compile` has the waiting for turns in it."""
    start = time.perf_counter()
    args, kwargs = given
    if job.way == OURS:
        own = copy.deepcopy(model) if job.options.arrange_parameters else model
        fast = monotile.compile(own, args, kwargs, target=job.target, options=job.options)
        took = time.perf_counter() - start
        return partial(fast, *args, **kwargs), Outcome(compile=took, **about(fast))
    rival = RIVALS[job.way]
    form, call = FORMS[job.form](job.network, model, given)
    if job.way == "compile":
        run = compiled(form, call, case)
    else:
        run = rival.make(job.network, form, call, device_of(job.target, job.options))
    took = time.perf_counter() - start
    return run, Outcome(compile=took if rival.compiles else None, versions=rival.versions)


def load_libraries(dtype: torch.dtype, device: torch.device) -> None:
    """Has cuBLAS and cuDNN loaded, which takes about a second, by products too small to disturb a timing."""
    for x in (torch.ones(1, 8, 8, 8, dtype=d, device=device) for d in (dtype, torch.float64)):
        torch.nn.functional.conv2d(x @ x, x.expand(8, 8, 8, 8))


def about(fast: CompiledModule) -> dict[str, Any]:
    least = fast.work
    bound = Bound(least.moved, sum(least.operations.values()), least.seconds(fast.target))
    return {"target": fast.target.name, "bound": bound, "kernels": fast.kernels}


def timed(run: Run, job: Job, device: torch.device) -> tuple[Times, str]:
    """In a CUDA graph, or why in none."""
    if device.type != "cuda":
        return measure(run, device, job.seconds, LEAST), ""
    try:
        return measure(graphed(run), device, job.seconds, LEAST), ""
    except RuntimeError as problem:
        note = f"no CUDA graph: {first_line(problem)}"
        return measure(run, device, job.seconds, LEAST), note


def allowed(job: Job, model: torch.nn.Module, device: torch.device, usual: float) -> float:
    """Of an error, where eager PyTorch has `usual`: a rival may have more, as what it computes in differs."""
    if job.way == OURS:
        return may_err(usual, model, device, job.options)
    return max(1e-3 if job.network.dtype == "float32" else 1e-2, 2 * usual)


def finished(made: Made, job: Job, model: torch.nn.Module, right: Any, usual: float) -> Outcome:
    """With error and times. usual: the error of eager PyTorch. Raises MonotileError for a wrong answer."""
    run, outcome = made
    device = device_of(job.target, job.options)
    outcome = checked(outcome, run(), right, model, allowed(job, model, device, usual))
    found, note = timed(run, job, device)
    graph = found.median if device.type == "cuda" and not note else None
    known = about_device(device)
    known["versions"] |= outcome.versions
    return msgspec.structs.replace(
        outcome, call=found.median, graph=graph, samples=found.samples, note=note, **known
    )


def attempt(make: Callable[[], Any]) -> Any:
    """What `make` gives, or the Outcome of its failure."""
    try:
        return make()
    except Absent as problem:
        return Outcome(failure=str(problem), absent=True)
    except Exception as problem:  # of any library
        words = " ".join(str(problem).split())
        return Outcome(failure=f"{type(problem).__name__}: {words[:400]}")


def run(case: Case) -> Iterator[Answer]:
    """The answers of all jobs, which are of one network."""
    jobs = sorted(case.jobs, key=lambda job: job.way == OURS)
    network = jobs[0].network
    dtype = getattr(torch, network.dtype or "float32")
    device = device_of(jobs[0].target, jobs[0].options)
    loaded, call = NETWORKS[network.name].built(dtype, network.arguments["batch"])
    found, call = to_device(loaded, call, device)
    assert isinstance(found, torch.nn.Module)
    model, given = found, random_inputs(call, seed=1)
    uncalled = copy.deepcopy(model)  # a call may leave something behind that is of its dtype
    load_libraries(dtype, device)
    made = [attempt(partial(prepared, job, case, model, given)) for job in jobs]
    with turn_of(case):
        right = exact(uncalled, given)
        usual = error(eager(model, given), right)
        if not usual <= USABLE:
            raise MonotileError(f"the error of PyTorch itself is {usual:.1e}")
        for job, m in zip(jobs, made, strict=True):
            outcome = m if isinstance(m, Outcome) else attempt(partial(finished, m, job, model, right, usual))  # fmt: skip
            yield Answer(job, outcome)


def main() -> None:
    torch.set_grad_enabled(False)
    case = msgspec.json.decode(sys.argv[1], type=Case)
    with Path(case.answers).open("ab") as file:
        for answer in run(case):
            file.write(msgspec.json.encode(answer) + b"\n")
            file.flush()
    os._exit(0)  # skip the clean-up of libraries, which may hang or fail


if __name__ == "__main__":
    main()
