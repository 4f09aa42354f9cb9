"""Linear algebra: factors of matrices, and what is solved by them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import monotile
from tests.frontend.against import Of, check


def positive(*shape: int) -> Tensor:
    x = torch.randn(*shape, shape[-1], dtype=torch.float64)
    return x @ x.mT + torch.eye(shape[-1])


def square(*shape: int) -> Tensor:
    return torch.randn(*shape, shape[-1], dtype=torch.float64)


def triangle(*shape: int) -> Tensor:
    return square(*shape).tril() + 3 * torch.eye(shape[-1])


def right(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def made_again(*factors: Tensor) -> tuple[Tensor, ...]:
    """Values, what vectors give together, and that they are orthonormal: their signs may differ."""
    if len(factors) == 2:
        values, vectors = factors
        return values, vectors * values.unsqueeze(-2) @ vectors.mT, vectors.mT @ vectors
    u, values, vh = factors
    return values, u * values.unsqueeze(-2) @ vh, u.mT @ u, vh @ vh.mT


def orthonormal(u: Tensor, values: Tensor, vh: Tensor) -> tuple[Tensor, ...]:
    """Of factors of a matrix without full rank, whose vectors are not all given."""
    return (u * values[..., None, :]) @ vh, values, u.mT @ u, vh @ vh.mT


linalg = torch.linalg
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "cholesky": (linalg.cholesky, (positive(2, 5),)),
    "cholesky, upper": (lambda x: linalg.cholesky(x, upper=True), (positive(4),)),
    "cholesky_ex": (linalg.cholesky_ex, (positive(3, 2, 3),)),
    "torch.cholesky": (torch.cholesky, (positive(3),)),
    "cholesky_solve": (torch.cholesky_solve, (right(2, 4, 3), triangle(4))),
    "cholesky_inverse": (torch.cholesky_inverse, (triangle(4),)),
    "inv": (linalg.inv, (square(2, 4),)),
    "inverse of one number": (torch.inverse, (square(1),)),
    "solve": (linalg.solve, (square(3, 4), right(3, 4, 2))),
    "solve, broadcast": (linalg.solve, (square(4), right(3, 4, 2))),
    "solve, a vector": (linalg.solve, (square(4), right(4))),
    "solve, vectors": (linalg.solve, (square(3, 4), right(3, 4))),
    "solve from the right": (
        lambda a, b: linalg.solve(a, b, left=False),
        (square(4), right(2, 4)),
    ),
    "det": (linalg.det, (square(3, 3),)),
    "slogdet": (linalg.slogdet, (square(3, 4),)),
    "logdet": (torch.logdet, (positive(4),)),
    "lu_factor": (linalg.lu_factor, (square(2, 4),)),
    "lu_factor of an oblong": (linalg.lu_factor, (right(5, 3),)),
    "lu": (linalg.lu, (square(2, 4),)),
    "lu of a wide one": (linalg.lu, (right(3, 5),)),
    "lu_unpack": (lambda x: torch.lu_unpack(*linalg.lu_factor(x)), (right(5, 3),)),
    "lu_solve": (
        lambda x, y: linalg.lu_solve(*linalg.lu_factor(x), y),
        (square(2, 4), right(4, 3)),
    ),
    "lu_solve, turned": (
        lambda x, y: linalg.lu_solve(*linalg.lu_factor(x), y, adjoint=True),
        (square(5), right(2, 5, 3)),
    ),
    "lu_solve from the right": (
        lambda x, y: linalg.lu_solve(*linalg.lu_factor(x), y, left=False),
        (square(5), right(3, 5)),
    ),
    "lu_solve from the right, turned": (
        lambda x, y: linalg.lu_solve(*linalg.lu_factor(x), y, left=False, adjoint=True),
        (square(5), right(3, 5)),
    ),
    "solve_triangular": (
        lambda a, b: linalg.solve_triangular(a, b, upper=False),
        (triangle(2, 4), right(2, 4, 3)),
    ),
    "solve_triangular, upper, from the right": (
        lambda a, b: linalg.solve_triangular(a, b, upper=True, left=False),
        (triangle(4).mT.contiguous(), right(2, 3, 4)),
    ),
    "solve_triangular of ones": (
        lambda a, b: linalg.solve_triangular(a, b, upper=False, unitriangular=True),
        (triangle(4), right(4, 3)),
    ),
    "triangular_solve": (
        lambda b, a: torch.triangular_solve(b, a, upper=False, transpose=True),
        (right(4, 3), triangle(4)),
    ),
    "qr": (linalg.qr, (right(2, 5, 3),)),
    "qr of a square": (linalg.qr, (square(4),)),
    "qr, wide": (linalg.qr, (right(3, 5),)),
    "qr, complete": (lambda x: linalg.qr(x, mode="complete"), (right(5, 3),)),
    "R alone": (lambda x: linalg.qr(x, mode="r")[1], (right(4, 3),)),
    "eigvalsh": (linalg.eigvalsh, (square(2, 5),)),
    "eigvalsh of two rows": (lambda x: linalg.eigvalsh(x, "U"), (square(2),)),
    "eigh": (lambda x: made_again(*linalg.eigh(x)), (square(2, 6),)),
    "eigh of one number": (linalg.eigh, (square(1),)),
    "svdvals": (linalg.svdvals, (right(2, 5, 3),)),
    "svd": (lambda x: made_again(*linalg.svd(x)), (square(2, 4),)),
    "svd, tall": (lambda x: made_again(*linalg.svd(x, False)), (right(5, 3),)),
    "svd, wide": (lambda x: made_again(*linalg.svd(x, False)), (right(2, 3, 5),)),
    "where elimination fails": (
        lambda x: (linalg.inv_ex(x)[1], linalg.lu_factor_ex(x)[2], linalg.solve_ex(x, x)[1]),
        (
            torch.stack(
                [torch.eye(4), torch.diag(torch.tensor([1.0, 2.0, 0.0, 3.0])), torch.zeros(4, 4)]
            ).double(),
        ),
    ),
    "svd, flat": (
        lambda x: orthonormal(*linalg.svd(x, False)),
        (right(2, 5, 3) * torch.tensor([1.0, 2.0, 0.0]),),
    ),
    "svd of zeros": (lambda x: orthonormal(*linalg.svd(0 * x, False)), (right(3, 5),)),
    "exponential": (
        lambda x: (linalg.matrix_exp(x), linalg.matrix_exp(x - x.mT)),
        (4 * right(2, 4, 4),),
    ),
    "pinv": (linalg.pinv, (right(5, 3),)),
    "rank, condition, nuclear norm": (
        lambda x: (linalg.matrix_rank(x), linalg.cond(x), linalg.matrix_norm(x, "nuc")),
        (square(4),),
    ),
}


@pytest.mark.filterwarnings("ignore:torch.(cholesky|triangular_solve) is deprecated")
@pytest.mark.parametrize("name", CASES)
def test_an_operator(name: str) -> None:
    function, x = CASES[name]
    check(Of(function), x)


def test_rows_are_exchanged() -> None:
    """The first pivot of each is zero."""
    x = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [4.0, -3.0, 8.0]], dtype=torch.float64)
    check(Of(lambda x: (linalg.inv(x), linalg.slogdet(x), *linalg.lu_factor(x))), (x,))


def test_it_says_where_a_matrix_is_not_positive() -> None:
    x = torch.diag(torch.tensor([1.0, 2.0, -1.0, 1.0]))
    check(Of(lambda x: linalg.cholesky_ex(x).info), (x,))


class Process(nn.Module):
    """A Gaussian process: the mean and variance at new points, and how likely the known ones are."""

    def forward(self, points: Tensor, values: Tensor, new: Tensor) -> tuple[Tensor, ...]:
        def kernel(a: Tensor, b: Tensor) -> Tensor:
            return torch.exp(-0.5 * torch.cdist(a, b).square())

        factor = linalg.cholesky(kernel(points, points) + 0.1 * torch.eye(len(points)))
        weights = torch.cholesky_solve(values[:, None], factor)
        between = kernel(points, new)
        half = linalg.solve_triangular(factor, between, upper=False)
        likely = -0.5 * values @ weights[:, 0] - factor.diagonal().log().sum()
        return (between.T @ weights)[:, 0], 1 - half.square().sum(0), likely


def test_one_kernel() -> None:
    args = torch.randn(8, 2), torch.randn(8), torch.randn(3, 2)
    fast = monotile.compile(Process(), args, target="cpu")
    assert fast.kernels == 1
    torch.testing.assert_close(fast(*args), Process()(*args), rtol=1e-4, atol=1e-5)


def test_a_distribution_that_checks_its_matrix() -> None:
    def density(x: Tensor) -> Tensor:
        known = torch.distributions.MultivariateNormal(torch.zeros(3), x, validate_args=False)
        return known.log_prob(torch.ones(3)) + torch.tensor(2.0)

    check(Of(density), (positive(3).float(),))


@pytest.mark.parametrize(
    ("shape", "sides"),
    [((4, 3), (4, 2)), ((5, 4, 3), (5, 4, 2)), ((2, 3, 5), (2, 3, 2)), ((2, 5, 3), (2, 5))],
)
def test_least_squares(shape: tuple[int, ...], sides: tuple[int, ...]) -> None:
    check(Of(lambda a, b: torch.linalg.lstsq(a, b).solution), (right(*shape), right(*sides)))
    check(Of(lambda a, b: torch.linalg.lstsq(a, b=b)[0]), (right(*shape), right(*sides)))
