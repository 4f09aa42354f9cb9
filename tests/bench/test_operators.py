"""A part of the sweep over PyTorch's operator database, and how the sweep judges and reports."""

import warnings
from pathlib import Path

import pytest
import torch

from bench.operators.check import Result, Settings, check, result, together
from bench.operators.compare import mismatch
from bench.operators.samples import database, family, samples, spread
from bench.operators.table import summary, write

PER_OPERATOR = 4  # samples, spread over all that the database has
GROUPS = (  # of operators that share a kernel
    "abs acos add atan2 bucketize cat clamp copysign cumsum diagonal_copy digamma div.floor_rounding",
    "expand fmod gather index_put index_reduce.mean lerp logsumexp masked_fill masked.var nanmedian",
    "nn.functional.avg_pool2d nn.functional.conv_transpose1d nn.functional.cosine_similarity"
    " nn.functional.gelu nn.functional.interpolate.bilinear nn.functional.pad.circular",
    "pow remainder roll scatter_reduce.amax searchsorted softmax sort std topk tril unfold where",
)


@pytest.mark.parametrize("names", GROUPS)
def test_samples_of_the_database(names: str) -> None:
    entries = database()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        chosen = [
            (name, s)
            for name in names.split()
            for s in spread(samples(entries[name], "cpu"), PER_OPERATOR)
        ]
        found, kernels = together([s for _, s in chosen], Settings())
    assert isinstance(found, list), found
    wrong = [(n, f) for (n, _), f in zip(chosen, found, strict=True) if f != ("correct", "")]
    assert not wrong
    assert kernels == 1


@pytest.mark.parametrize(
    ("name", "verdict", "why"),
    [
        ("geqrf", "refused", "aten.geqrf"),
        ("randn", "excluded", "random"),
        ("unique", "excluded", "a number or a shape from"),
        ("empty", "excluded", "uninitialised"),
    ],
)
def test_what_is_not_correct_is_said(name: str, verdict: str, why: str) -> None:
    found = check(name, database()[name], Settings(limit=1))
    assert found.verdict == verdict
    assert why in found.reasons[verdict]


def test_a_refusal_names_its_samples() -> None:
    entries = database()
    with torch.no_grad():
        given = [samples(entries[name], "cpu")[0] for name in ("abs", "geqrf", "abs")]
        found, _ = together(given, Settings())
    assert isinstance(found, list)
    assert [verdict for verdict, _ in found] == ["", "refused", ""]  # the others are open
    assert "aten.geqrf" in found[1][1]


def test_families_are_left_out() -> None:
    assert family("linalg.inv") == family("svd") == "linear algebra"
    assert family("special.i1") == "special"
    assert family("lu") is not None
    assert family("linspace") is None


def test_judgement() -> None:
    x = torch.tensor([1.0, 1000.0, torch.inf])
    exact = x.double()
    assert mismatch(x, x, exact) is None
    assert mismatch(x * (1 + 5e-6), x, exact) is None
    assert "1 of 3" in (mismatch(x + torch.tensor([1e-3, 0, 0]), x, exact) or "")
    assert mismatch(torch.nan_to_num(x), x, exact) is not None
    assert mismatch(x.half(), x, exact) is not None
    assert mismatch((x,), x, exact) is not None
    # As near as PyTorch is allowed, also where PyTorch happens to be exact at this element.
    off = torch.tensor([1.0, 1.001, torch.inf])
    assert mismatch(torch.tensor([1.003, 1.0, torch.inf]), off, torch.ones(3).double()) is None


def test_page(tmp_path: Path) -> None:
    found: list[Result] = [
        result("good", Settings(), [("correct", ""), ("excluded", "random: aten.rand")], 1, 0.5),
        result("bad", Settings(), [("correct", ""), ("refused", "aten.bad of float32[2]")]),
        result("odd", Settings(), [("excluded", "random: aten.rand")]),
    ]
    assert summary(found).startswith("2 operators counted: 1 refused, 1 correct; 50.0 % correct")
    write(tmp_path / "page.md", found, 64)
    page = (tmp_path / "page.md").read_text()
    assert "| `bad` | cpu | 1 of 2 | aten.bad of float32[2] |" in page
    assert "| random | `odd` |" in page
    assert "| cpu |" in page
