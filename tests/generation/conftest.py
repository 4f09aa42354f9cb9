"""Generators that several files ask: each is compiled once."""

import pytest
import torch

from monotile.generation.generator import Generator, generator
from tests.generation.test_generator import CAPACITY, CHUNK, OPTIONS, model_of


@pytest.fixture(scope="session")
def llama() -> tuple[torch.nn.Module, Generator]:
    """A model and its generator, whose prompts are read in chunks. Whoever changes a weight changes it back."""
    model = model_of("llama")
    return model, generator(model, CAPACITY, chunk=CHUNK, target="cpu", options=OPTIONS)
