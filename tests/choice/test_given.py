"""Choices that somebody gives: through `monotile.compile`, its cache, and the command line."""

from pathlib import Path

import pytest
import torch
from torch import nn

import monotile
from monotile.choice.chooser import Prefer
from monotile.choice.spec import from_json, to_json
from monotile.compile import record
from monotile.plan.printer import show
from tests.cli.test_cli import invoke


def network() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    layers = nn.Linear(48, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 32), nn.Softmax(-1)
    return nn.Sequential(*layers).eval().requires_grad_(False), (torch.randn(40, 48),)


def test_one_stage_less_and_more(tmp_path: Path) -> None:
    model, (x,) = network()
    options = monotile.Options(workers=2, cache_dir=str(tmp_path))
    spec = record(model, (x,), target="cpu", options=options)
    plain = monotile.compile(model, (x,), target="cpu", options=options)
    same = monotile.compile(model, (x,), target="cpu", options=options, choices=spec)
    assert same.source == plain.source
    never = Prefer("one stage", lambda together: not together)
    apart = record(model, (x,), target="cpu", options=options, chooser=never)
    path = tmp_path / "c.json"
    path.write_text(to_json(apart))
    other = monotile.compile(model, (x,), target="cpu", options=options, choices=path)
    assert len(other.plan.body) > len(plain.plan.body)
    for fast in (plain, other):
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    again = monotile.compile(model, (x,), target="cpu", options=options, choices=apart)
    assert show(again.plan) == show(other.plan)


def test_a_way_that_there_is_not() -> None:
    model, args = network()
    options = monotile.Options(workers=2, cache=False)
    spec = record(model, args, target="cpu", options=options)
    wrong = {k: {"grid": [7]} if k.kind == "cut" else v for k, v in spec.items()}
    with pytest.raises(monotile.ChoiceError, match="no such way"):
        monotile.compile(model, args, target="cpu", options=options, choices=wrong)
    with pytest.raises(monotile.ChoiceError, match="holds no choices"):
        monotile.compile(model, args, target="cpu", options=options, choices="absent.json")


def test_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    common = ("mmoe", "--target", "cpu", "--workers", "1")
    code, text = invoke("inspect", *common, "--show", "choices")
    assert code == 0, text
    path.write_text(text)
    assert from_json(text)
    for command in (("compile",), ("inspect", "--show", "stages")):
        code, out = invoke(*command, *common, "--choices", str(path))
        assert code == 0, out
    code, again = invoke("inspect", *common, "--show", "choices", "--choices", str(path))
    assert (code, from_json(again)) == (0, from_json(text))
    assert invoke("inspect", "mmoe", "--plan", "p.json", "--show", "choices")[0] == 2
    assert invoke("inspect", "mmoe", "--choices", str(path), "--passes")[0] == 2
