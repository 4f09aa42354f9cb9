"""The key of a whole compilation: equal for equal models, another for anything that could change the kernel."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

from monotile.config import Options
from monotile.frontends.torch.export import export
from monotile.runtime import fingerprint
from monotile.runtime.fingerprint import exported_key, parameters_of
from monotile.targets.cpu.target import cpu_target

X = torch.zeros(2, 4)


class Model(nn.Module):
    def __init__(self, scale: float = 2.0, buffer: float = 1.0, tied: bool = False) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        if tied:
            self.b.weight = self.a.weight
        self.register_buffer("kept", torch.full((4,), buffer))
        self.register_buffer("inside", torch.full((4,), buffer), persistent=False)
        self.scale = scale

    def forward(self, x: torch.Tensor, flag: bool = True) -> dict[str, torch.Tensor]:
        y = self.b(self.a(x)) * self.scale + self.kept + self.inside
        return {"y": y if flag else y.relu()}


def key_of(
    model: nn.Module,
    *args: object,
    target: int = 1,
    options: Options | None = None,
    **kwargs: object,
) -> str:
    exported = export(model.eval(), args or (() if kwargs else (X,)), kwargs)
    found = exported_key(exported, cpu_target(workers=target), options or Options())
    assert found is not None
    return found


def text_of(model: nn.Module) -> str:
    """What the key is a hash of, but for the package, target and options."""
    return "\n".join(fingerprint._program(export(model.eval(), (X,), {})))


def test_equal_models_have_equal_keys_whatever_their_parameters_hold() -> None:
    assert key_of(Model()) == key_of(Model())
    changed = Model()
    changed.kept.add_(1)
    assert key_of(changed) == key_of(Model())


def test_the_text_lasts_from_process_to_process() -> None:
    code = "from tests.runtime.test_fingerprint import *; print(text_of(Model()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == text_of(Model()).strip()


@pytest.mark.parametrize(
    "other",
    [
        lambda: key_of(Model(scale=3.0)),
        lambda: key_of(Model(tied=True)),
        lambda: key_of(Model().half(), X.half()),
        lambda: key_of(Model(), torch.zeros(3, 4)),
        lambda: key_of(Model(), X, False),
        lambda: key_of(Model(), x=X),
        lambda: key_of(Model(), target=2),
        lambda: key_of(Model(), options=Options(fast_math=True)),
        lambda: key_of(nn.Sequential(Model().a, Model().b)),
    ],
)
def test_what_changes_the_kernel_changes_the_key(other: Callable[[], str]) -> None:
    assert other() != key_of(Model())


def test_compiled_in_buffers_are_in_the_key() -> None:
    changed = Model()
    changed.inside.add_(1)
    assert key_of(changed) != key_of(Model())


def test_parameters_by_name() -> None:
    model = Model()
    exported = export(model.eval(), (X,), {})
    found = parameters_of(exported, ("a.weight", "kept", "inside"))
    assert found is not None
    assert found["a.weight"] is model.a.weight
    assert found["inside"].data_ptr() == model.inside.data_ptr()
    assert parameters_of(exported, ("a.weight", "gone")) is None
