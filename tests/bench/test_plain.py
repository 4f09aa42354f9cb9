"""The plain forms and the JAX versions are the same networks."""

import importlib

import pytest
import torch

from bench.table import TABLE
from monotile.compare.forms import FORMS
from monotile.compare.jobs import Network
from monotile.compare.xla import XlaRun
from monotile.examples import EXAMPLES
from monotile.runtime.accuracy import error, exact
from monotile.runtime.models import load_model
from monotile.runtime.reference import Call

pytest.importorskip("transformers")
SMALL = {
    "bert_base": {"layers": 1, "tokens": 9},
    "vit_base": {"layers": 1, "image": 32},
    "gpt2": {"layers": 1, "tokens": 9, "use_cache": False},
    "lstm": {"layers": 2, "steps": 5, "width": 16},
    "mmoe": {},
}
NETWORKS = {n.name: n for n in TABLE}


def made(network: Network) -> tuple[torch.nn.Module, Call]:
    spec = EXAMPLES.get(network.spec, network.spec)
    model, call = load_model(spec, "float32", {**SMALL[network.name], "batch": 2})
    assert isinstance(model, torch.nn.Module)
    return model.requires_grad_(False), call


@pytest.mark.parametrize("name", [n.name for n in NETWORKS.values() if n.plain])
def test_plain(name: str) -> None:
    network = NETWORKS[name]
    model, call = made(network)
    form, (args, kwargs) = FORMS["plain"](network, model, call)
    assert error(form(*args, **kwargs), exact(model, call)) < 2e-6


@pytest.mark.parametrize("name", [n.name for n in NETWORKS.values() if n.xla])
def test_xla(name: str) -> None:
    if importlib.util.find_spec("jax") is None:
        pytest.skip("JAX is not installed")
    model, call = made(NETWORKS[name])
    run = XlaRun(NETWORKS[name], model, call, "cpu")
    assert error(run(), exact(model, call)) < 2e-6
    run.prepare()
    assert all(t.median > 0 for t in run.times(0.001))
