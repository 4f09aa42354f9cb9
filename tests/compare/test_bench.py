"""`monotile bench`: ours and the rivals checked and timed, the absent and the failing named."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from monotile.cli.main import main
from monotile.compare.jobs import Bound, Job, Network, Outcome
from monotile.compare.report import markdown, notes, title
from monotile.compare.results import Log, read
from monotile.compare.run import Settings, jobs_of
from monotile.errors import InputError
from tests.docs.test_results import check

NETWORK = Network("mmoe", "mmoe", "float32", {"batch": 2}, plain="bench.plain.mmoe:plain")
ABOUT = {"device": "a GPU", "versions": {"monotile": "0", "torch": "2", "python": "3"}}


def wrong(model: object) -> object:
    """A plain form that is none."""
    del model
    raise ValueError("no such network")


@pytest.mark.wide
def test_ours_is_timed_with_its_parameters_as_they_are_too(tmp_path: Path) -> None:
    command = ["bench", "mmoe", "--dtype", "float32", "--target", "cpu", "--batch", "2", "--rival", "eager", "--arrange-parameters"]  # fmt: skip
    found = CliRunner().invoke(main, [*command, "--seconds", "0.01", "--out", str(tmp_path)])
    assert found.exit_code == 0, found.output
    (log,) = tmp_path.glob("*.json")
    check(log.read_text())
    (entry,) = read(log).entries
    assert entry.ours is not None
    assert entry.arranged is not None


def test_ours_and_the_rivals(tmp_path: Path) -> None:
    command = ["bench", "mmoe", "--dtype", "float32", "--target", "cpu", "--batch", "2", "--rival", "eager", "--rival", "xla"]  # fmt: skip
    more = ["--seconds", "0.01", "--jobs", "2", "--plain", f"{__name__}:wrong", "--out", str(tmp_path)]  # fmt: skip
    found = CliRunner().invoke(main, command + more)
    assert found.exit_code == 0, found.output
    (log,) = tmp_path.glob("*.json")
    check(log.read_text())
    (entry,) = read(log).entries
    assert entry.ours is not None
    assert entry.floor is not None
    assert entry.arguments == {"batch": 2}
    assert set(entry.rivals) == {"eager"}
    assert entry.errors["ours"] < 1e-6
    assert "JAX" in entry.absent["xla"]
    assert entry.absent["plain eager"] == "failed: ValueError: no such network"
    assert "Monotile" in found.output
    assert "no such network" in found.output


def filled() -> Log:
    log = Log.new("abc", "")
    bound = Bound(3_000_000, 10**9, 1e-6)
    log.add(Job(NETWORK, "monotile"), Outcome(call=4e-6, graph=2e-6, samples=9, compile=1.0, error=1e-7, kernels=1, bound=bound, **ABOUT))  # fmt: skip
    log.add(Job(NETWORK, "eager"), Outcome(call=9e-6, graph=8e-6, samples=9, error=1e-7, **ABOUT))
    log.add(Job(NETWORK, "compile", "plain"), Outcome(call=6e-6, samples=9, error=1e-7, **ABOUT))
    log.add(Job(NETWORK, "xla"), Outcome(failure="JAX is not installed", absent=True))
    log.add(Job(NETWORK, "profile"), Outcome(error=1e-7, **ABOUT))
    return log


def test_a_log_has_the_form_of_the_measurements(tmp_path: Path) -> None:
    log = filled()
    log.write(tmp_path / "log.json")
    check((tmp_path / "log.json").read_text())
    assert read(tmp_path / "log.json") == log


def test_the_fastest_rival_is_what_counts() -> None:
    (entry,) = filled().entries
    assert entry.own == pytest.approx(2)
    assert entry.best == ("plain compile", pytest.approx(6))
    assert "| 2.0 | 6.0 (plain compile) | 3.00 × | 8.0 | 4.00 × | 1.0 |" in markdown(filled())
    assert title(entry) == "mmoe, float32, batch=2"
    assert notes(entry)[0].endswith("Monotile takes 2.0 times that")
    assert notes(entry)[1] == "xla: JAX is not installed"


def test_a_picture_of_bars(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = pytest.importorskip("monotile.compare.report")
    report.chart(filled(), tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_every_form_of_every_rival() -> None:
    names = {j.name for j in jobs_of(NETWORK, ("eager", "compile", "xla"), Settings())}
    assert names == {"monotile", "eager", "plain eager", "compile", "plain compile", "xla"}
    images = msgspec.structs.replace(NETWORK, images=True, plain=None)
    names = {j.name for j in jobs_of(images, ("eager",), Settings())}
    assert names == {"monotile", "eager", "channels-last eager"}
    with pytest.raises(InputError, match="unknown rival fastest"):
        jobs_of(NETWORK, ("fastest",), Settings())
