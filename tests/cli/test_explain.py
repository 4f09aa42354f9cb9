"""monotile explain --time."""

from click.testing import CliRunner

from monotile.cli.main import main


def test_times_of_a_model_that_runs_here() -> None:
    found = CliRunner().invoke(main, ["explain", "mmoe", "--time", "--target", "cpu", "--no-cache"])
    assert found.exit_code == 0, found.output
    assert "bound by" in found.output
    assert "times their floors" in found.output
    assert "lost in all" in found.output


def test_floors_alone_where_there_is_no_such_machine() -> None:
    arguments = ["explain", "mmoe", "--time", "--target", "cuda:sm_80", "--no-cache"]
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 0, found.output
    assert "bound by" in found.output
    assert "measured" not in found.output
