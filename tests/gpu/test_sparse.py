"""`monotile.sparse` on a GPU."""

import pytest
import torch

import monotile
from tests.models.accuracy import error, exact
from tests.models.sparse_networks import NETWORKS, ONE_LIST, Blocks, Rows, inputs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", [*NETWORKS, *ONE_LIST])
def test_small_lists(name: str, dtype: torch.dtype) -> None:
    model, args = inputs(name)
    model = model.to("cuda", dtype)
    args = tuple(x.to("cuda", dtype if x.is_floating_point() else x.dtype) for x in args)
    fast = monotile.compile(model, args)
    for _ in range(2):
        right = exact(model, args)
        assert error(fast(*args), right) <= 1.5 * error(model(*args), right) + 1e-6
        args = tuple(x.flip(-1) for x in args)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 1.0])
def test_large_products(share: float) -> None:
    """Whatever the mask leaves."""
    torch.manual_seed(0)
    x, w = (torch.randn(2048, 2048, device="cuda").half() for _ in range(2))
    for model, shape in (
        (Rows(), (64, 2048)),
        (Blocks((32, 32)), (64, 64)),
        (Blocks((64, 8)), (32, 256)),
    ):
        mask = torch.rand(*shape, device="cuda") < share
        fast = monotile.compile(model, (x, mask, w))
        right = exact(model, (x, mask, w))
        found = [fast(x, mask, w) for _ in range(3)]
        assert error(found[0], right) <= 1.5 * error(model(x, mask, w), right) + 1e-6
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])  # lists are in order
