"""A compiled model to a file and back."""

import copy
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from monotile.errors import InputError
from monotile.runtime.module import CompiledModule, load
from tests.runtime.artifacts import N, cpu_artifact, cuda_artifact


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.monotile"


def test_there_and_back(path: Path) -> None:
    w = torch.arange(N, dtype=torch.float32)
    fast = CompiledModule(cpu_artifact(), {"w": w})
    fast.save(path)
    w.zero_()
    again = load(path)
    x = torch.randn(N)
    torch.testing.assert_close(again(x)["y"], x * torch.arange(N) + 0.5)
    assert again.plan == fast.plan


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_has_parameters_of_its_own(again: Callable[[Any], Any]) -> None:
    w = torch.ones(N)
    fast = CompiledModule(cpu_artifact(), {"w": w})
    made = again(fast)
    w.zero_()
    x = torch.randn(N)
    torch.testing.assert_close(made(x)["y"], x + 0.5)
    torch.testing.assert_close(fast(x)["y"], torch.full((N,), 0.5))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_compiled_without_a_gpu_for_a_machine_with_one(path: Path) -> None:
    CompiledModule(cuda_artifact(), {"w": torch.ones(N)}).save(path)
    assert load(path).cubin == b"cubin"


def test_equal_models_make_equal_files(path: Path) -> None:
    fast = CompiledModule(cpu_artifact(), {"w": torch.ones(N)})
    fast.save(path)
    first = path.read_bytes()
    fast.save(path)
    assert path.read_bytes() == first


def test_another_processor_builds_again(path: Path) -> None:
    artifact = cpu_artifact()
    foreign = msgspec.structs.replace(artifact.binary, processor="other")
    fast = CompiledModule(msgspec.structs.replace(artifact, binary=foreign), {"w": torch.ones(N)})
    fast.save(path)
    again = load(path)
    assert again.artifact.binary.processor == artifact.binary.processor
    torch.testing.assert_close(again(torch.ones(N))["y"], torch.full((N,), 1.5))


def test_files_of_others(path: Path) -> None:
    path.write_text("junk")
    with pytest.raises(InputError, match="is not a model that Monotile saved"):
        load(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("artifact", b"junk")
        file.writestr("parameters.json", b"[]")
    with pytest.raises(InputError, match="saved by another version"):
        load(path)
