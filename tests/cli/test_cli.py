"""The command line: help is quick, mistakes end in messages."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from monotile.cli.main import main


def invoke(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(main, list(arguments))
    return found.exit_code, found.output


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from monotile.cli.main import main;"
        "print(CliRunner().invoke(main, ['--help']).output); print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("compile", "run", "bench", "inspect", "doctor"):
        assert f"\n  {name} " in out.stdout
    assert out.stdout.strip().endswith("False")


def test_version() -> None:
    assert "0.1.0" in invoke("--version")[1]


def test_doctor() -> None:
    code, out = invoke("doctor")
    assert code == 0
    for subject in ("PyTorch", "GPU", "NVRTC", "nvJitLink", "C compiler", "cache"):
        assert subject in out


def test_unknown_commands() -> None:
    assert invoke("polish")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compile", "nothing"), '"nothing" is not a model'),
        (("compile", "no.such:thing"), "cannot be imported"),
        (("compile", "monotile.config:absent"), "cannot be imported"),
        (("compile", "gone.pt2"), "gone.pt2 cannot be loaded"),
        (("compile", "mmoe", "--dtype", "int8"), "not a floating-point dtype"),
        (("compile", "mmoe", "--target", "tpu"), 'unknown target "tpu"'),
        (("compile", "mmoe", "--workers", "100000"), "all workers run at once"),
        (("compile", "builtins:dict"), "must return"),
        (("inspect", "gone.monotile"), "gone.monotile"),
    ],
)
def test_mistakes_end_in_a_message(arguments: tuple[str, ...], message: str) -> None:
    code, out = invoke(*arguments)
    assert code == 1
    assert message in out
    assert "Traceback" not in out


def test_a_function_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def make():\n    return 3\n")
    command = [sys.executable, "-c", "from monotile.cli.main import main; main()"]
    root = str(Path(__file__).parents[2])
    out = subprocess.run(
        [*command, "compile", "mine:make"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": root, "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert out.returncode == 1
    assert "mine:make() must return (model, args)" in out.stderr
