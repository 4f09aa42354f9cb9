"""Branches whose results differ in sizes, as the end of a detector: the result has the size of the branch that was taken."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import monotile

T = torch.Tensor


def cut(x: T) -> T:
    if x.sum() > 0:
        x = x[:2]
    return x


def transposed(x: T) -> tuple[T, T]:
    """Two dimensions at once."""
    if x.sum() > 0:
        return x[:, :2], x
    return x[1:], x.T[:3]


def selected(x: T) -> tuple[T, T]:
    """The usual question before a detector's last steps."""
    mask = x[:, 0] > 0
    y = x[mask]
    if y.numel() == 0:
        return torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)
    return y * 2, mask.nonzero().squeeze(1)


def best(x: T) -> tuple[T, T, int]:
    kept = (x.sum(1) > 0).nonzero().squeeze(1)
    if len(kept) == 0:
        return x.new_zeros((0, 4)), x.new_zeros((0,)), 0
    boxes = x[kept]
    scores = boxes[:, 0]
    order = scores.argsort(descending=True)[:3]
    return boxes[order], scores[order], 1


def twice(x: T) -> tuple[T, T]:
    a = torch.cat([x, x[:2]]) if x.max() > 1 else x[:3]
    if x.min() < -1:
        return a.softmax(0), a.sum(0)
    return a, a.mean(0)


def reselected(x: T) -> T:
    """A bound that PyTorch does not know."""
    found = x[x > 0]
    more = found[found > 1]
    if more.numel() == 0:
        return found
    return more


def strongest(x: T) -> list[tuple[T, T]]:
    """Keypoints of two images, each with a choice of its own; the paths name their sizes independently."""
    found = list[tuple[T, T]]()
    for row in x.reshape(2, 12):
        at, score = (row > 0).nonzero().squeeze(1), row[row > 0]
        if score.numel() > 3:
            least = -torch.kthvalue(-score, 3)[0]
            kept = score >= least
            at, score = at[kept], score[kept]
        found.append((at, score))
    return found


def either(x: T) -> T:
    """Selections of both branches that have one name for their size."""
    kept = list[T]()
    if x.sum() > 0:
        kept.append(x[x > 0.5].cumsum(0))
    else:
        kept.append(x[x < -0.5].cumsum(0))
    return kept[0]


def checked(x: T) -> T:
    """A path that checks a size, which PyTorch then writes in another form before the choice."""
    y, kept = x[x > 0], list[T]()
    if y.shape[0] != 0:
        torch._check(y.shape[0] != 0)
        kept.append(y.mean())
    else:
        kept.append(y.sum())
    return kept[0]


def halves(x: T) -> T:
    """As LoFTR's."""
    y = x[x > 0]
    a, b = torch.cat([y, y * 2]).chunk(2)
    return a + b


FUNCTIONS = [checked, halves, cut, transposed, selected, best, twice, reselected, strongest, either]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_result_has_the_size_of_the_branch_taken(function: Callable[[T], Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    compiled = monotile.compile(function, (x,), target="cpu")
    assert compiled.kernels == 1
    for given in (x, -x, x.abs(), -x.abs(), x.clamp(-0.5, 0.5), 3 * x.abs() + 1):
        torch.testing.assert_close(compiled(given), function(given))


@pytest.mark.wide
def test_of_dynamic_sizes() -> None:
    def cut(x: T) -> T:
        if x.sum() > 0:
            return x[1:]
        return x * 2

    rows = Dim("rows", min=1, max=10)
    compiled = monotile.compile(cut, (torch.randn(6, 4),), dynamic_shapes=({0: rows},), target="cpu")  # fmt: skip
    for n in (1, 2, 6, 10):
        for x in (torch.rand(n, 4), -torch.rand(n, 4)):
            torch.testing.assert_close(compiled(x), cut(x))


def test_a_path_that_is_exported_twice() -> None:
    """PyTorch cannot prove that one path takes all sizes, and traces it again."""

    def chosen(x: T) -> T:
        kept = list[T]()
        if x.sum() > 0:
            kept.append(x[1:].cumsum(0).sum(0))
        else:
            kept.append(x.sum(0) * 2)
        return kept[0]

    rows = Dim("rows", min=1, max=10)
    example = (torch.randn(6, 4),)
    compiled = monotile.compile(chosen, example, dynamic_shapes=({0: rows},), target="cpu")
    for n in (1, 3, 10):
        for x in (torch.rand(n, 4), -torch.rand(n, 4)):
            torch.testing.assert_close(compiled(x), chosen(x))


def resized(x: T) -> tuple[T, ...]:
    y = x[x > 0]
    n = y.shape[0]
    rows = [torch.nn.functional.interpolate(y[None, None], 4, mode=m)[0, 0] for m in ("nearest", "linear")]  # fmt: skip
    return (*rows, torch.linspace(0, 1, 3) * n**0.5, torch.full((2,), n / 3), y - (n - 1) / 2)


def test_fractions_of_data_dependent_sizes() -> None:
    x = torch.randn(12)
    compiled = monotile.compile(resized, (x,), target="cpu")
    for given in (x, x.abs(), x + 1):
        for found, want in zip(compiled(given), resized(given), strict=True):
            torch.testing.assert_close(found, want)
