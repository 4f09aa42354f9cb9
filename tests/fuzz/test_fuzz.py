"""A short run; `python -m tests.fuzz` makes a long one."""

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
