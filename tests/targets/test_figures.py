"""The files of figures: every field of every one, and what they mean together."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import monotile
from monotile.errors import InternalError
from monotile.targets import model
from monotile.targets.cpu.target import FIGURES, CpuFigures, cpu_target
from monotile.targets.cuda.target import CUDA_TARGETS, GPUS, GpuFigures, cuda_target
from monotile.targets.files import read_figures
from monotile.targets.model import CostModel, fitted
from monotile.targets.target import Capabilities, Target

FOLDER = Path(monotile.__file__).parent / "targets"
FILES = sorted(FOLDER.glob("*/figures/*.json"))
FAMILIES = [v for v in vars(model).values() if isinstance(v, type) and issubclass(v, msgspec.Struct)]  # fmt: skip


def structs(value: object) -> list[msgspec.Struct]:
    """`value` and all structs in it."""
    if not isinstance(value, msgspec.Struct):
        return []
    inner = [s for f in value.__struct_fields__ for s in structs(getattr(value, f))]
    return [value, *inner]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_field_is_there_and_no_other(path: Path) -> None:
    kind = CpuFigures if path.parent.parent.name == "cpu" else GpuFigures
    found = msgspec.json.decode(path.read_bytes(), type=kind)
    assert found.name == path.stem
    given = json.loads(path.read_text())
    assert json.loads(msgspec.json.encode(found, order="sorted")) == sorted_sets(given)
    for s in structs(found):
        numbers = [getattr(s, f) for f in s.__struct_fields__]
        assert all(n >= 0 for n in numbers if isinstance(n, int | float))


def sorted_sets(given: dict[str, Any]) -> dict[str, Any]:
    return given | {k: sorted(v) for k, v in given.items() if k == "instructions"}


def test_a_missing_field_is_refused(tmp_path: Path) -> None:
    given = json.loads((FOLDER / "cuda" / "figures" / "h100.json").read_text())
    del given["model"]["common"]["kept"]
    (tmp_path / "h100.json").write_text(json.dumps(given))
    with pytest.raises(InternalError, match="missing required field `kept`"):
        read_figures(tmp_path, GpuFigures)


@pytest.mark.parametrize("kind", [*FAMILIES, Capabilities, Target], ids=lambda k: k.__name__)
def test_every_field_is_explained(kind: type[msgspec.Struct]) -> None:
    assert not kind.__struct_defaults__
    if kind.__struct_fields__ and kind is not CostModel:
        words = (kind.__doc__ or "").replace(",", " ").replace(":", " ").split()
        assert set(kind.__struct_fields__) <= set(words)


def test_one_gpu_stands_for_each_architecture() -> None:
    defaults = [g.architecture for g in GPUS.values() if g.default]
    assert sorted(defaults) == sorted({g.architecture for g in GPUS.values()}) == [*CUDA_TARGETS]


@pytest.mark.parametrize("name", GPUS)
def test_families_fit_the_instructions(name: str) -> None:
    gpu = GPUS[name]
    matmul = fitted(gpu.model.matmul)
    assert (matmul.groups is not None) == ("wgmma" in gpu.instructions)
    assert gpu.model.register_tiles is None
    assert None not in (gpu.model.reduction, gpu.model.rowwise, gpu.model.attention)


def test_the_figures_that_sources_are_made_with() -> None:
    """A change of these changes every kernel: it is to be seen here."""
    h100, h200, a100 = cuda_target("sm_90a"), cuda_target("h200"), cuda_target("sm_80")
    assert (h100.name, h100.workers, h100.l2_bytes) == ("cuda:sm_90a", 132, 50 << 20)
    assert (h100.dram_bandwidth, h100.barrier_seconds) == (3.09e12, 1.05e-6)
    assert (h200.name, h200.architecture, h200.workers) == ("cuda:h200", "sm_90a", 132)
    assert (h200.l2_bytes, h200.shared_bytes) == (60 << 20, 227 << 10)
    assert (h200.dram_bandwidth, h200.barrier_seconds) == (4.57e12, 0.93e-6)
    common = msgspec.structs.replace(h100.model.common, resident=0.8)
    assert h200.model == msgspec.structs.replace(h100.model, common=common)
    assert (a100.architecture, a100.workers, a100.dram_bandwidth) == ("sm_80", 108, 1.55e12)
    cpu = cpu_target(workers=3, vector_bytes=64)
    assert (cpu.registers, cpu.l2_bandwidth, cpu.flops) == (
        256,
        150e9,
        {"fma": 300e9, "dot8": 1200e9, "amx.bf16": 3600e9, "amx.int8": 7200e9},
    )
    assert cpu.model == FIGURES.model


def test_a_family_without_kernels() -> None:
    with pytest.raises(InternalError, match="no kernels"):
        fitted(cpu_target(workers=1).model.matmul)
