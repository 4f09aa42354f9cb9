"""Sums of which a comparison leaves one term: gathers, in whatever form a one-hot matrix comes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.types import to_numpy
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Compute, statements
from monotile.ir.verify import verify
from monotile.pipeline import transform
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.models.accuracy import error, exact

Form = Callable[[Tensor, Tensor], Tensor]  # of ids [n] and a table [50, 16]

FORMS: dict[str, Form] = {
    "one_hot": lambda ids, table: one_hot(ids, 50).to(table.dtype) @ table,
    "compared": lambda ids, table: (ids[:, None] == torch.arange(50)).to(table.dtype) @ table,
    "where": lambda ids, table: torch.where(torch.arange(50)[:, None] == ids[:, None, None], table, 0).sum(1),
    "two": lambda ids, table: (one_hot(ids.reshape(2, -1), 50).to(table.dtype) @ table).sum(0),
    "scaled": lambda ids, table: ((ids[:, None] == torch.arange(50)) * 0.25).to(table.dtype) @ table,
}  # fmt: skip


class Chosen(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form, self.table = FORMS[form], nn.Parameter(torch.randn(50, 16), False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.form(ids, self.table)


def ids(least: int = 0, end: int = 50) -> Tensor:
    return torch.randint(least, end, (24,))


@pytest.mark.parametrize("form", FORMS)
def test_no_sum_is_as_long_as_the_table(form: str) -> None:
    model, args = Chosen(form), (ids(),)
    found = capture(model, args)
    program, constants = transform(found.program, found.constants, Options())
    verify(program)
    sums = [s for s in statements(program.body) if isinstance(s, Compute) and s.reduce]
    assert max((a.extent for s in sums for a in s.reduce), default=0) <= 2
    values = {n: to_numpy(x) for n, x in found.parameters.items()} | constants
    values |= {program.inputs[0].name: args[0].numpy()}
    (got,) = evaluate(program, values)
    assert error(torch.from_numpy(got), exact(model, args)) < 1e-6


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("form", ["compared", "where"])
def test_what_is_no_row_of_the_table_gives_zeros(form: str) -> None:
    """Data decide; there is nothing to check, as nothing is read for them."""
    model, given = Chosen(form), ids(-20, 70)
    (got,) = Emulated(model, (ids(),))(given)
    assert (got[(given < 0) | (given >= 50)] == 0).all()
    assert error(got, exact(model, (given,))) < 1e-6
