"""Models by name: examples, functions and exported programs."""

from pathlib import Path

import pytest
import torch
from torch import nn

from monotile.errors import InputError
from monotile.examples import EXAMPLES
from monotile.runtime.models import load_model


def three() -> object:
    return nn.Linear(2, 2), (torch.ones(1, 2),), {"more": torch.ones(1, dtype=torch.int64)}


def test_a_function() -> None:
    model, (args, kwargs) = load_model(f"{__name__}:three", "bfloat16")
    assert isinstance(model, nn.Linear)
    assert model.weight.dtype == args[0].dtype == torch.bfloat16
    assert kwargs["more"].dtype == torch.int64


@pytest.mark.parametrize("name", ["lstm", "lstm_unrolled", "mmoe"])
def test_examples_run(name: str) -> None:
    model, (args, kwargs) = load_model(EXAMPLES[name], "float16")
    assert isinstance(model, nn.Module)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    with torch.no_grad():
        model(*args, **kwargs)


def test_bert() -> None:
    pytest.importorskip("transformers")
    model, (args, _) = load_model(EXAMPLES["bert_base"], None)
    assert isinstance(model, nn.Module)
    assert sum(p.numel() for p in model.parameters()) == 108_891_648
    assert args[0].shape == (1, 128)


# PyTorch before 2.13 warns of how it reads its own file.
@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
def test_an_exported_program(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(nn.Linear(2, 3), (torch.ones(1, 2),)), path)
    _, (args, kwargs) = load_model(str(path), None)
    assert torch.equal(args[0], torch.ones(1, 2))
    assert kwargs == {}
    with pytest.raises(InputError, match="are fixed in its graph"):
        load_model(str(path), "float16")
