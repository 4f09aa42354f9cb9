"""monotile inspect --show facts."""

from click.testing import CliRunner

from monotile.cli.main import main


def test_facts_of_a_model() -> None:
    found = CliRunner().invoke(main, ["inspect", "mmoe", "--show", "facts"])
    assert found.exit_code == 0, found.output
    assert "operations a byte" in found.output
    assert "readers, each element" in found.output


def test_a_compiled_file_has_no_facts() -> None:
    found = CliRunner().invoke(main, ["inspect", "some.monotile", "--show", "facts"])
    assert found.exit_code == 2
    assert "contains no Program" in found.output
