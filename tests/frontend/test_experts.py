"""Mixtures of experts."""

import pytest
import torch

from tests.frontend.against import Operators, check, check_operators

transformers = pytest.importorskip("transformers")


def test_histogram() -> None:
    check_operators(
        {
            "histc": lambda x: torch.histc(x, 5, -1, 2),
            "experts": lambda x: torch.histc(torch.tensor([0.0, 3, 3, 1]), bins=4, min=0, max=3),
        },
        torch.randn(40),
    )


def test_masked_scatter() -> None:
    model = Operators({"out": lambda x, m, s: x.masked_scatter(m, s)})
    check(model, (torch.randn(2, 5, 3), torch.rand(2, 5, 1) > 0.5, torch.randn(10, 3)))
    check(model, (torch.randn(3), torch.rand(4, 3) > 0.5, torch.randn(12)))


def test_mixtral() -> None:
    config = transformers.MixtralConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=96,
        num_local_experts=4,
    )
    model = transformers.MixtralModel(config).eval()
    check(model, (torch.randint(0, 96, (1, 7)),), {"use_cache": False, "return_dict": False})


def test_rows_merged_by_a_mask() -> None:
    def merge(x: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x.index_put((mask,), rows)

    mask = torch.tensor([[True, False, True], [False, True, False]])
    check(Operators({"out": merge}), (torch.randn(2, 3, 4), mask, torch.randn(3, 4)))
