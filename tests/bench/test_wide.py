"""The wide table: its networks, what is left of a log, processes that fail, tables and picture."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from bench.history import newest_wide, rewritten
from bench.wide import report, runner
from bench.wide.__main__ import chosen, missing, opened, put, settings_for
from bench.wide.case import Answer, Case, run
from bench.wide.networks import ASKED, DOMAINS, NETWORKS
from monotile.compare.jobs import Job, Network, Outcome
from monotile.compare.results import Log
from monotile.compare.run import Settings, jobs_of
from tests.docs.test_results import check

ABOUT: dict[str, Any] = {
    "device": "a GPU",
    "versions": {"monotile": "0", "torch": "2", "python": "3"},
}
MMOE, NBEATS = (Network(n, n, "float32", {"batch": 1}) for n in ("mmoe", "nbeats"))


def test_networks() -> None:
    assert len(NETWORKS) >= 60
    assert len({n.title for n in NETWORKS.values()}) == len(NETWORKS)
    usual = [n for n in NETWORKS.values() if n.domain not in ASKED]
    assert {n.library for n in usual} == {"torch", "torchvision", "transformers"}
    assert len(DOMAINS) >= 10
    assert len(chosen((), (), (), ())) == 3 * sum(len(n.dtypes) for n in usual)
    assert len(chosen((), ASKED, ("float16",), (1,))) == len(NETWORKS) - len(usual)
    assert len(chosen(("timm_vgg11",), (), ("float16",), (1,))) == 1
    assert [n.dtype for n in chosen(("fnet_base",), (), (), (1,))] == ["float32"]
    assert not chosen(("fnet_base",), (), ("float16",), ())


def test_some_are_chosen() -> None:
    found = chosen(("mmoe", "resnet50"), ("vision",), ("float16",), (1, 8))
    assert [str(n) for n in found] == ["resnet50, float16, batch=1", "resnet50, float16, batch=8"]
    assert all(n.images for n in found)


def answers(network: Network, ours: float | None, eager: float) -> list[Answer]:
    own = Outcome(failure="it ended") if ours is None else Outcome(call=ours, graph=ours, error=0.0, **ABOUT)  # fmt: skip
    return [
        Answer(Job(network, "monotile"), own),
        Answer(Job(network, "eager"), Outcome(call=eager, graph=eager, error=0.0, **ABOUT)),
        Answer(Job(network, "compile", "channels-last"), Outcome(call=1.0, error=0.0, **ABOUT)),
    ]


def filled() -> Log:
    log = Log.new("abc", "")
    for name, dtype, batch, ours, eager in (
        ("resnet50", "float16", 1, 2e-4, 4e-4),
        ("resnet50", "float16", 8, 4e-4, 2e-4),
        ("resnet50", "float32", 1, None, 1e-3),
        ("mmoe", "float16", 1, 1e-5, 8e-5),
        ("gone", "float16", 1, 1e-5, 2e-5),
    ):
        network = Network(name, name, dtype, {"batch": batch})
        put(log, network, answers(network, ours, eager))
    return log


def test_what_is_left(tmp_path: Path) -> None:
    log, networks = Log.new("abc", ""), [MMOE, NBEATS]
    assert missing(networks, log) == networks
    put(log, MMOE, answers(MMOE, None, 2.0))
    assert missing(networks, log) == [NBEATS]  # a failure is an entry too
    entry = put(log, MMOE, answers(MMOE, 1.0, 2.0))
    assert log.entries == [entry]
    assert entry.absent == {}
    log.write(tmp_path / "log.json")
    check((tmp_path / "log.json").read_text())
    assert opened(tmp_path / "log.json", "abc", "") == log
    assert opened(tmp_path / "log.json", "def", "").commit == "abc, def"
    assert report.listed([NBEATS, MMOE, NBEATS]) == "nbeats (2), mmoe (1)"
    assert report.listed([]) == "none"


def test_a_piece_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is not begun; what does not end in time is left."""

    def fake(network: Network, settings: Settings, until: float, turn: Path) -> list[Answer] | None:
        del settings, turn
        if network.arguments["batch"] == 8:
            return None  # the time was over
        time.sleep(0.05)
        return answers(network, 1.0, 2.0) if time.monotonic() < until else None

    networks = [Network("mmoe", "mmoe", "float32", {"batch": b}) for b in (1, 8, 32, 33)]
    found: list[Network] = []

    def told(network: Network, given: Sequence[Answer]) -> None:
        assert given
        found.append(network)

    monkeypatch.setattr(runner, "answers_of", fake)
    assert runner.run(networks, Settings(), 1.5 * runner.GUESS - 1, told) == networks
    assert runner.run(networks, Settings(at_once=2), 1.5 * runner.GUESS + 10, told) == [networks[1]]
    assert sorted(map(str, found)) == sorted(str(n) for n in networks if n != networks[1])


@pytest.mark.wide
def test_a_process_that_fails_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU each way is a process of its own."""
    monkeypatch.setitem(runner.RIVALS, "cpu", ("eager", "xla"))
    nothing = Network("nothing", "nothing", "float32", {"batch": 1})
    settings = Settings(target="cpu", limit=100)
    found = runner.answers_of(nothing, settings, time.monotonic() + 200, tmp_path / "turn")
    assert found is not None
    words = {a.job.way: a.outcome.failure for a in found}
    assert list(words) == ["xla", "monotile", "eager"]
    assert words.pop("xla") == "there is no JAX version of this network"
    assert found[0].outcome.absent
    assert set(words.values()) == {"KeyError: 'nothing' (exit status 1)"}
    short = msgspec.structs.replace(settings, limit=0.01)
    jobs = jobs_of(MMOE, ("eager",), settings)
    found = runner.in_a_process(jobs, short, time.monotonic() + 9, tmp_path / "turn")
    assert found is not None
    assert [a.outcome.failure for a in found] == ["it took over 0 seconds"] * 2
    assert runner.answers_of(MMOE, settings, time.monotonic() + 0.01, tmp_path / "turn") is None


def test_on_a_cpu_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_for("cpu", None, 9.0, 0.1).at_once == 1
    assert "OMP_NUM_THREADS" not in runner.environment(Settings(), "folder").keys() - os.environ
    assert runner.environment(Settings(at_once=1000), "folder")["OMP_NUM_THREADS"] == "1"
    with pytest.raises(click.UsageError, match="one at a time"):
        settings_for("cpu", 2, 9.0, 0.1)
    monkeypatch.setattr("bench.wide.__main__.kind", lambda _: "cuda")
    assert settings_for("cuda", 3, 9.0, 0.1).at_once == 3


def test_failures_have_words() -> None:
    jobs = [Job(MMOE, "monotile"), Job(MMOE, "eager")]
    known = Answer(jobs[1], Outcome(call=1.0, error=0.0))
    assert runner.complete(jobs, [known], "why") == [known, Answer(jobs[0], Outcome(failure="why"))]
    assert runner.last_words("one\ntwo\n\n", 3) == "two (exit status 3)"
    assert "on the GPU" in runner.last_words("Timeout (0:01:00)!\nThread 0x1:\n  File", 1)


def test_a_case(tmp_path: Path) -> None:
    settings = Settings(target="cpu", seconds=0.01)
    jobs = [*jobs_of(MMOE, ("eager",), settings), Job(MMOE, "no such rival", "no such form", target="cpu")]  # fmt: skip
    case = Case(jobs, str(tmp_path / "turn"), 60.0, str(tmp_path / "answers"))
    found = {a.job.way: a.outcome for a in run(case)}
    assert list(found) == ["eager", "no such rival", "monotile"]
    assert found["no such rival"].failure == "KeyError: 'no such rival'"
    assert found["monotile"].call
    assert found["monotile"].bound
    assert found["eager"].call
    assert (found["monotile"].error or 0) < 1e-6


def test_tables() -> None:
    log = filled()
    assert "| fp16, batch 1 | 3 | 3.17 × | 8.00 × (MMoE) | 2.00 × (ResNet-50) | 0 | 0 |" in report.summary(log)  # fmt: skip
    assert "| fp32, batch 1 | 0 |  |  |  |  | 1 |" in report.summary(log)
    table = report.table(log)
    assert "| **vision** |" in table
    assert "| ResNet-50 | 200 (2.00 ×) | 400 (**0.50 ×**) | no time |" in table
    assert table.index("ResNet-50") < table.index("MMoE") < table.index("gone")
    assert "| gone |" in table


def test_what_ours_is_compared_with() -> None:
    log = filled()
    assert report.beside(log) == "the faster of eager PyTorch and `torch.compile`"
    assert report.in_graphs(log)
    assert "| eager PyTorch | 4 | 2.00 × | 1 |" in report.against_each(log)
    assert "OpenVINO" not in report.against_each(log)
    for way in ("openvino", "onnxruntime"):
        log.add(Job(MMOE, way), Outcome(call=1.0, error=0.0, **ABOUT))
    assert report.beside(log) == "the fastest of eager PyTorch, `torch.compile`, OpenVINO and ONNX Runtime"  # fmt: skip


def test_defects_and_failures(tmp_path: Path) -> None:
    log = filled()
    assert report.defects(log, {}) == "- ResNet-50, fp16, batch 8, 0.50 × (eager): no reason known yet"  # fmt: skip
    reasons = {"resnet50": "all", "resnet50:float16:8": "this one"}
    assert report.defects(log, reasons).endswith(": this one")
    assert report.reasons_in(tmp_path) == {}
    (tmp_path / "reasons.json").write_bytes(msgspec.json.encode(reasons))
    assert "this one" in report.page(log, tmp_path)
    assert report.reasons_in(tmp_path, "cpu") == {}
    assert report.failures(log) == "- ResNet-50, monotile (fp32, batch 1): failed: it ended"
    assert "monotile: failed" in report.line(log.entries[2])
    assert "2.00 x" in report.line(log.entries[0])


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report.chart(filled(), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000


def test_pages(tmp_path: Path) -> None:
    empty = "<!-- wide -->\n\n<!-- /wide -->"
    assert rewritten(empty, tmp_path) == empty
    (tmp_path / "wide").mkdir()
    log = filled()
    log.write(tmp_path / "wide" / "2026-01-01-h100.json")
    log.notes = "newer"
    log.write(tmp_path / "wide" / "2026-01-02-h100.json")
    assert [(name, log.notes) for name, log in newest_wide(tmp_path / "wide")] == [("2026-01-02-h100", "newer")]  # fmt: skip
    assert "![](bench/results/wide/2026-01-02-h100.png)" in rewritten(empty, tmp_path)
    assert "| ResNet-50 |" in rewritten("<!-- wide table --><!-- /wide table -->", tmp_path)


def test_the_logs_have_the_form_of_the_others() -> None:
    folder = Path(report.__file__).parents[1] / "results" / "wide"
    for path in folder.glob("20*.json"):
        check(path.read_text())
    assert all(isinstance(why, str) for why in report.reasons_in(folder).values())
