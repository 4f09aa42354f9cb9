"""What every worker makes for itself, carried through loops, on the emulator against PyTorch."""

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from monotile.errors import VerificationError
from monotile.ir.program import Loop, statements
from monotile.kernels.registry import read_plan
from monotile.plan.check.structure import verify
from monotile.plan.places import Place, Replica, Rotate, replicas_in
from monotile.plan.walk import stages_in
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.codegen.test_gemv_emulated import SMALL, check
from tests.conftest import wide

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


class Sandwich(nn.Module):
    """A layer that normalises what it adds, as Gemma's and OLMo 2's, without its attention."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.before, self.after, self.own = (nn.RMSNorm(width, eps=1e-6) for _ in range(3))
        self.gate, self.up, self.mix = (
            nn.Linear(width, n, bias=False) for n in (inner, inner, width)
        )
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.own(self.mix(x.tanh()))
        h = self.before(x)
        return x + self.after(self.down(F.gelu(self.gate(h)) * self.up(h)))


class Network(nn.Module):
    """Layers, which may be of two kinds in turn, behind a table and before a head."""

    def __init__(self, layers: int, inner: tuple[int, ...], width: int = 512, *, old: bool = False):
        super().__init__()
        self.table, self.head = nn.Embedding(40, width), nn.Linear(width, 2000)
        self.layers = nn.ModuleList(Sandwich(width, inner[k % len(inner)]) for k in range(layers))
        self.old = old

    def forward(self, token: Tensor) -> Tensor:
        first = x = self.table(token)
        for layer in self.layers:
            x = layer(x)
        return self.head(x + first if self.old else x)


def places_of(fast: Emulated) -> list[set[Place]]:
    """Where each loop's carried values lie."""
    loops = [s for s in statements(fast.program.body) if isinstance(s, Loop)]
    carried = [[t.name for c in s.carried for t in (c.init, c.param, c.result, c.out)] for s in loops]  # fmt: skip
    return [{p for n in names for p in fast.plan.places.get(n, ())} for names in carried]


@pytest.mark.parametrize("dtype", [torch.float16, wide(torch.bfloat16)])
def test_the_residual_stream_lies_on_every_worker(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    fast = check(Network(4, (1024,)).to(dtype).eval(), torch.randint(40, (1,)), 16)
    (places,) = places_of(fast)
    assert len(places) == 2, (
        "the stream and its tanh: each value is read before the next one is made"
    )
    assert all(isinstance(p, Replica) for p in places)
    assert read_plan(fast.plan.to_json()) == fast.plan


def test_through_loops_inside_loops() -> None:
    torch.manual_seed(1)
    fast = check(Network(8, (1024, 1024, 1024, 1280)).half().eval(), torch.randint(40, (1,)), 16)
    outer, inner = places_of(fast)
    assert len(outer) == len(inner) == 2
    assert all(isinstance(p, Replica) for p in outer | inner)


def test_what_is_read_later_keeps_a_place_of_its_own() -> None:
    torch.manual_seed(2)
    fast = check(Network(4, (1024,), old=True).half().eval(), torch.randint(40, (1,)), 16)
    (places,) = places_of(fast)
    assert 3 in {len(set(replicas_in(p))) for p in places if isinstance(p, Rotate)}


def test_what_does_not_fit_stays_in_memory() -> None:
    torch.manual_seed(3)
    fast = check(Network(4, (64,), 2304, old=True).half().eval(), torch.randint(40, (1,)), 16)
    (places,) = places_of(fast)
    assert not any(map(replicas_in, places))
    assert any(s.everywhere for s in stages_in(fast.plan.body)), "the normalisations still are"


def test_one_place_for_what_is_read_later_is_refused() -> None:
    torch.manual_seed(2)
    fast = Emulated(Network(4, (1024,), old=True).half().eval(), (torch.randint(40, (1,)),), 16, target=SMALL)  # fmt: skip

    carried = {q for x in fast.plan.places.values() for p in x if isinstance(p, Rotate) for q in replicas_in(p)}  # fmt: skip

    def one(p: Place) -> Place:
        return min(carried, key=lambda q: q.offset) if carried & {*replicas_in(p)} else p

    places = {n: tuple(map(one, found)) for n, found in fast.plan.places.items()}
    with pytest.raises(VerificationError, match="was written since"):
        verify(msgspec.structs.replace(fast.plan, places=places), fast.program, SMALL)
