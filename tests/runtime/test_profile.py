"""A profiled model on the CPU: what it gives, as table, trace and picture."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import monotile
from monotile.errors import InputError
from monotile.examples.lstm import make
from monotile.plan.records import HEADER_WORDS, RECORD_WORDS, capacity, recorded
from monotile.runtime.module import CompiledModule
from monotile.runtime.profile import Profile, decode

pytestmark = pytest.mark.filterwarnings("ignore:RNN module weights are not part of single")


@pytest.fixture(scope="module")
def fast() -> CompiledModule:
    model, args = make(layers=2, steps=5, width=32)
    options = monotile.Options(profile=True, cache=False, workers=2)
    return monotile.compile(model, args, target="cpu", options=options)


@pytest.fixture(scope="module")
def profile(fast: CompiledModule) -> Profile:
    return fast.profile(torch.randn(5, 1, 32))


def test_every_task_is_there_once(fast: CompiledModule, profile: Profile) -> None:
    found = [(r.stage, r.iteration, r.task) for r in profile.records if r.kind == "task"]
    assert sorted(found) == sorted(
        (r.stage.name, place, task)
        for r in recorded(fast.plan)
        for place in np.ndindex(*r.extents)
        for task in range(int(np.prod(r.stage.grid)))
    )
    for worker in range(profile.workers):
        own = [r for r in profile.records if r.worker == worker]
        assert all(a.end <= b.start for a, b in itertools.pairwise(own))
    assert 0 < profile.seconds < 10
    assert profile.dropped == 0


def test_the_table_names_every_stage(fast: CompiledModule, profile: Profile) -> None:
    table = profile.table()
    assert all(r.stage.name in table for r in recorded(fast.plan))
    assert abs(sum(s.share for s in profile.stages()) - 1) < 1e-6


def test_the_trace_is_chromes(profile: Profile) -> None:
    events = json.loads(profile.trace())["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == len(profile.records)
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} == {"worker 0", "worker 1"}


def test_the_timeline_is_a_picture(profile: Profile, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    profile.timeline(tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_a_saved_model_keeps_its_records(fast: CompiledModule, tmp_path: Path) -> None:
    fast.save(tmp_path / "m.monotile")
    again = monotile.load(tmp_path / "m.monotile")
    assert len(again.profile(torch.randn(5, 1, 32)).records) > 0


def test_without_the_option_it_is_refused() -> None:
    model = torch.nn.Linear(4, 4).eval()
    fast = monotile.compile(model, (torch.randn(2, 4),), target="cpu")
    with pytest.raises(InputError, match=r"Options\(profile=True\)"):
        fast.profile(torch.randn(2, 4))


def test_clocks_that_began_anywhere_meet_in_one_time(fast: CompiledModule) -> None:
    """Two workers: the second one's clock is far ahead and ticks faster, and it begins 100 ns later."""
    room = capacity(fast.plan)
    memory = np.zeros((2, HEADER_WORDS + RECORD_WORDS * room), np.uint64)
    for worker, (clock, begun, ticks) in enumerate([(7_000, 0, 7), (9_000_000, 100, 8)]):
        end = clock + 250 * ticks  # in 1000 ns
        memory[worker, :HEADER_WORDS] = [1, clock, 5000 + begun, end, 6000 + begun]
        at = clock + (400 - begun) * ticks // 4
        record = [worker << 32, 0, at, at + 10 * ticks]
        memory[worker, HEADER_WORDS : HEADER_WORDS + RECORD_WORDS] = record
    first, second = decode(fast.plan, memory.reshape(-1)).records
    assert (first.worker, second.worker) == (first.task, second.task) == (0, 1)
    for r in (first, second):
        assert abs(r.start) < 1e-15
        assert abs(r.end - 40e-9) < 1e-15


def test_a_class_of_sizes_has_its_own() -> None:
    """The records are those of the kernel that ran."""
    options = monotile.Options(profile=True, cache=False, workers=2)
    small, large = (
        monotile.compile(
            torch.nn.Linear(16, 16).eval(), (torch.randn(most, 16),), target="cpu", options=options,
            dynamic_shapes=({0: torch.export.Dim("n", min=2, max=most)},),
        )
        for most in (8, 64)
    )  # fmt: skip
    both = large.beside([small])
    for rows, own in ((4, small), (40, large)):
        assert both._fitting([rows]) is own
        assert both.profile(torch.randn(rows, 16)).records
