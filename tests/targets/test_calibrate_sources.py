"""What calibration runs on a GPU compiles, for a GPU that this machine lacks."""

import pytest

from monotile.config import Options
from monotile.targets.cuda.build import build
from monotile.targets.cuda.calibrate import probes, products
from monotile.targets.detect import detect_target

TARGET = detect_target("cuda:sm_90a", Options())


def test_probes() -> None:
    assert build(probes.source(), TARGET, Options())


@pytest.mark.parametrize("instruction", ["wgmma", "mma"])
@pytest.mark.parametrize("major", ["k", "mn"])
def test_products(instruction: str, major: str) -> None:
    ways = [w for w in products.sweep(TARGET) if (w.cut.instruction, w.major) == (instruction, major)]  # fmt: skip
    assert build(products.source(ways[:1]), TARGET, Options())
