"""The threads of the CPU target: concurrent calls, forks, few processors."""

import os
import threading
from collections.abc import Generator

import numpy as np
import pytest

from monotile.ir.evaluate import evaluate
from monotile.targets.cpu.target import cpu_target
from tests.codegen import cpu_programs as programs
from tests.codegen.cpu_run import Compiled, random_values

PROGRAM = programs.layers(8)
VALUES = random_values(PROGRAM)
WANT = evaluate(PROGRAM, VALUES)


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return Compiled(PROGRAM, target=cpu_target(workers=4))


@pytest.fixture
def one_processor() -> Generator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def right(compiled: Compiled) -> bool:
    got = compiled(VALUES)
    return all(np.allclose(g, w, atol=1e-4) for g, w in zip(got, WANT, strict=True))


def test_calls_from_many_threads_take_turns(compiled: Compiled) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        mine = compiled.twin()
        if not all(right(mine) for _ in range(50)):
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_forked_child_has_threads_of_its_own(compiled: Compiled) -> None:
    assert right(compiled)
    child = os.fork()
    if child == 0:
        os._exit(0 if right(compiled) and right(compiled) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert right(compiled)


@pytest.mark.usefixtures("one_processor")
def test_workers_share_the_processors_that_there_are() -> None:
    compiled = Compiled(PROGRAM, target=cpu_target(workers=4))
    assert right(compiled)
    assert right(compiled)


def test_an_idle_pool_wakes_up(compiled: Compiled) -> None:
    for pause in (0.0, 0.002, 0.02):
        threading.Event().wait(pause)
        assert right(compiled)
