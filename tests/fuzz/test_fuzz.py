"""A short run; `python -m tests.fuzz` makes a long one."""

import os
import subprocess
import sys

import pytest

from tests.codegen.emulate import COMPILER
from tests.fuzz.check import check
from tests.fuzz.generate import generate
from tests.fuzz.sizes import run


@pytest.mark.parametrize("first", range(0, 12, 6))
def test_networks_on_the_cpu(first: int) -> None:
    _agree(range(first, first + 6), "cpu")


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_networks_on_the_emulator() -> None:
    _agree(range(100, 104), "emulator")


@pytest.mark.parametrize("target", ["program", "cpu"])
def test_networks_of_any_size(target: str) -> None:
    for seed in range(8 if target == "program" else 2):
        run(seed, target)


def _agree(seeds: range, target: str) -> None:
    for seed in seeds:
        verdict = check(generate(seed), target)
        assert not verdict.is_failure, f"seed {seed}, {target}: {verdict.kind}\n{verdict.text}"


def test_a_seed_names_one_network() -> None:
    """Whatever order sets of names have in a process."""
    text = "from tests.fuzz.generate import generate; print(repr(generate(762123)))"
    found = {
        subprocess.run(
            [sys.executable, "-c", text],
            env=os.environ | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
