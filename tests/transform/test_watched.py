"""What the host watches: what a Program says of it, what is refused, and that every pass keeps it."""

import threading
import time

import msgspec
import numpy as np
import pytest

from monotile.codegen.source import Source
from monotile.config import Options
from monotile.errors import ScheduleError, VerificationError
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Expr, Load, Tensor, add, const, idx
from monotile.ir.printer import show
from monotile.ir.program import (
    Carry,
    Compute,
    Loop,
    Program,
    Scatter,
    Statement,
    compute,
    is_snapshot,
    scalar,
    statements,
)
from monotile.ir.verify import verify
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify as verify_plan
from monotile.plan.nodes import Plan, Stage
from monotile.targets.cpu.emit import emit as emit_c
from monotile.targets.cuda.emit import emit as emit_cuda
from monotile.targets.target import Target
from monotile.transform.iterate import Iterate, iterate
from tests.codegen.emulate import COMPILER, emulate
from tests.schedule import programs as p

I64 = DType.I64
N, STOP, NEWS = scalar("n", I64), scalar("stop", I64), Tensor("news", (8,), I64)
GOES_ON = scalar("goes_on", DType.BOOL)
HOW = Iterate(inputs=(0, 1), predicate=1, bound=1 << 20, watched=(2, 3))
replace = msgspec.structs.replace


def step(*more: Statement, stop: Tensor = STOP, given: Expr | None = None) -> Program:
    """n + 1, noted in `news`; goes on while `stop` is 0 and n below 6."""
    n, on = Load(N, ()), scalar("on", DType.BOOL)
    after = compute(scalar("after", I64), lambda: add(n, idx(1)))
    noted = Scatter(Tensor("noted", (8,), I64), NEWS, (), (Binary("mod", n, idx(8)),), given or add(n, idx(1)))  # fmt: skip
    free = Binary("eq", Load(stop, (idx(0),) * len(stop.shape)), idx(0))
    on = compute(on, lambda: Binary("and", Binary("lt", n, idx(6)), free))
    return Program((N, GOES_ON, NEWS, stop), (), (*more, noted, after, on), (after.out, on.out, noted.out), ("news",))  # fmt: skip


def values(**more: object) -> dict[str, np.ndarray]:
    every = {"n": 0, "goes_on": True, "news": np.full(8, -1), "stop": 0} | more
    return {name: np.asarray(x) for name, x in every.items()}


def looped() -> Program:
    program, _ = transform(step(), {}, Options(), iterate=HOW)
    return program


def test_a_loop_takes_snapshots_as_its_iterations_begin() -> None:
    text = show(iterate(step(), HOW))
    assert "input news: i64[8] watched\ninput stop: i64 watched\n" in text
    assert "  stop_seen i64 = stop[]\n" in text
    assert text.count("stop[") == 1


@pytest.mark.parametrize(("stop", "last"), [(0, 7), (1, 1)])
def test_it_ends_when_it_is_told_to(stop: int, last: int) -> None:
    for program in (iterate(step(), HOW), looped()):
        verify(program)
        after, on, news = evaluate(program, values(stop=stop))
        assert (after, on) == (last, False)
        assert news.tolist() == [*range(1, last + 1), *[-1] * (8 - last)]


def test_the_evaluator_reads_the_value_of_the_time() -> None:
    program = iterate(step(), HOW)
    endless = compute(scalar("on", DType.BOOL), lambda: Binary("eq", Load(scalar("stop_seen", I64), ()), idx(0)))  # fmt: skip
    (loop,) = program.body
    assert isinstance(loop, Loop)
    body = tuple(endless if isinstance(s, Compute) and s.out.name == "on" else s for s in loop.body)
    given = values(stop=np.zeros((), np.int64))
    teller = threading.Thread(target=lambda: (time.sleep(0.1), given["stop"].fill(1)))
    teller.start()
    after, on, _ = evaluate(replace(program, body=(replace(loop, body=body),)), given)
    teller.join()
    assert 1 < after < 1 << 20
    assert not on


def test_passes_leave_snapshots_alone() -> None:
    """Also those that come before `iterate` in the pipeline."""
    program = iterate(step(), HOW)
    for given in (program, replace(program, watched=())):
        done, _ = transform(given, {}, Options())
        assert done.watched == given.watched
        verify(done)
        kept = [s for s in statements(done.body) if is_snapshot(s, frozenset({"stop"}))]
        assert (
            len(kept) == len(given.watched) // 2
        )  # an input that does not change is read where it is needed


def test_a_snapshot_that_is_carried_stays_one() -> None:
    """Neither its readers nor what begins with it read the input again."""
    seen = compute(scalar("seen", I64), lambda: Load(STOP, ()))
    now, then, last = (scalar(name, I64) for name in ("now", "then", "last"))
    made = compute(then, lambda: add(Load(now, ()), Load(seen.out, ())))
    loop = Loop(Axis("l", 3), (Carry(seen.out, now, then, last),), (), (made,))
    program = Program((STOP,), (), (seen, loop), (last,), (), ("stop",))
    done, _ = transform(program, {}, Options())
    verify(done)
    assert [x.item() for x in evaluate(done, {"stop": np.asarray(2)})] == [8]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (replace(step(), watched=("other",)), "watched 'other' is no input"),
        (replace(step(), watched=("news", "news")), "watched twice"),
        (replace(step(), watched=("stop",)), "watched 'stop' is read by 'on', which is no snapshot"),
        (step(given=Load(NEWS, (idx(0),))), "watched 'news' is read by 'noted'"),
        (replace(step(stop=Tensor("stop", (2,), I64)), watched=("stop",)), "neither scalar nor state"),
        (replace(step(), outputs=(N, STOP, Tensor("noted", (8,), I64)), watched=("stop",)), "used without a snapshot"),
        (Program((Tensor("h", (), DType.F16),), (), (), (), (), ("h",)), "elements of float16"),
    ],
)  # fmt: skip
def test_the_verifier_refuses(bad: Program, words: str) -> None:
    if not bad.watched:
        bad = replace(bad, watched=("news",))
    if "without" in words:
        bad = replace(bad, body=bad.body[:2])
    with pytest.raises(VerificationError, match=words):
        verify(bad)


def test_what_cannot_be_watched() -> None:
    with pytest.raises(ScheduleError, match="neither a scalar nor a state"):
        iterate(step(stop=Tensor("stop", (2,), I64)), HOW)
    with pytest.raises(ScheduleError, match="a result becomes an input that the host may change"):
        iterate(step(), replace(HOW, watched=(0,)))
    whole = compute(Tensor("noted", (8,), I64), lambda i: add(i, Load(N, ())))
    program = replace(step(), body=(whole, *step().body[1:]))
    with pytest.raises(ScheduleError, match="the state news cannot be watched"):
        transform(program, {}, Options(), iterate=replace(HOW, unread=True))


def planned(target: Target) -> tuple[Program, Plan]:
    program, context = for_target(looped(), target)
    plan = schedule(program, target, Options(workers=target.workers), context)
    verify_plan(plan, program, target)
    return program, plan


@pytest.mark.parametrize("target", p.TARGETS, ids=lambda t: t.name)
def test_a_snapshot_has_a_stage_of_its_own(target: Target) -> None:
    program, plan = planned(target)
    (stage,) = (s for s in p.stages(plan) if s.steps[0].computes == ("stop_seen",))
    assert len(stage.steps) == 1
    assert stage.first == target.workers - 1
    others = [s for s in p.stages(plan) if s is not stage]

    def joined(s: Stage) -> Stage:
        return replace(s, steps=(*stage.steps, *s.steps)) if s.steps[0].computes == ("on",) else s

    (loop,) = plan.body[:1]
    assert others
    bad = replace(plan, body=(replace(loop, body=tuple(joined(s) for s in loop.body if s is not stage)), *plan.body[1:]))  # fmt: skip
    with pytest.raises(VerificationError, match="more than a snapshot"):
        verify_plan(bad, program, target)


def test_what_is_seen_is_not_read() -> None:
    noted = Scatter(Tensor("noted", (8,), I64), NEWS, (), (Load(N, ()),), Load(N, ()))
    first = compute(scalar("first", I64), lambda: Load(noted.out, (idx(0),)))
    program = Program((N, NEWS), (), (noted, first), (first.out, noted.out), ("news",), ("news",))
    plan = schedule(program, p.CPU, Options())
    with pytest.raises(VerificationError, match="first loads noted, which lies where the host"):
        verify_plan(plan, program, p.CPU)


def test_accesses_are_volatile_in_both_languages() -> None:
    for target, emit in zip(p.TARGETS, (emit_c, emit_cuda), strict=True):
        program, plan = planned(target)
        text = emit(program, plan, target, Options()).text
        assert text.count("volatile int64_t* const stop") == 1
        assert text.count("volatile int64_t* const noted") == 1


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize(("stop", "last"), [(0, 7), (1, 1)])
def test_on_the_emulator(stop: int, last: int) -> None:
    program, plan = planned(p.H100)
    plan = replace(plan, launch=replace(plan.launch, threads=32))
    source: Source = emit_cuda(program, plan, p.H100, Options())
    after, _, news = emulate(program, plan, source, values(stop=stop))
    assert after == last
    assert news.tolist() == [*range(1, last + 1), *[-1] * (8 - last)]


def test_a_constant_is_no_snapshot() -> None:
    s = compute(scalar("c", I64), lambda: const(0, I64))
    assert not is_snapshot(s, frozenset({"stop"}))
