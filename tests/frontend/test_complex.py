"""Complex numbers inside a graph, against PyTorch."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import monotile
from monotile.errors import CaptureError, InputError, MonotileError
from monotile.frontends.torch.capture import capture
from tests.frontend.against import check, check_operators


class Rotary(nn.Module):
    """Turns pairs of features by an angle for each position; the table is a constant, a buffer, or made in the graph."""

    def __init__(self, table: str) -> None:
        super().__init__()
        self.table = table
        angles = torch.outer(torch.arange(32), 1.0 / 10000 ** (torch.arange(8) / 8))
        self.register_buffer("angles", angles)
        self.held = torch.polar(torch.ones_like(angles), angles)
        self.register_buffer("buffer", torch.exp(1j * angles), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.polar(torch.ones_like(self.angles), self.angles)
        table = {"held": self.held, "buffer": self.buffer, "made": made}[self.table]
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = z * table[: x.shape[1]].view(1, x.shape[1], 1, -1)
        return torch.view_as_real(turned).flatten(3).type_as(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("table", ["held", "buffer", "made"])
def test_rotary(table: str, dtype: torch.dtype) -> None:
    check(Rotary(table), (torch.randn(2, 8, 3, 16).to(dtype),))


def test_rotary_compiles() -> None:
    model, x = Rotary("held"), torch.randn(2, 8, 3, 16)
    torch.testing.assert_close(monotile.compile(model, (x,), target="cpu")(x), model(x))
    torch.testing.assert_close(torch.compile(model, backend="monotile")(x), model(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arithmetic(dtype: torch.dtype) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            z = torch.complex(x, y) * (2 + 1j) + x - y * 1j
            w = torch.exp(z * 0.1) * torch.exp(1j * x) - 2 * z
            return (
                torch.view_as_real(z),
                (-w).real,
                (w / 3).imag,
                w.abs(),
                (w / y).angle(),
                torch.linalg.vector_norm(w, dim=-1),
                w.norm(1),
            )

    check(Model(), (torch.randn(4, 6, dtype=dtype), torch.rand(4, 6, dtype=dtype) + 0.5))


def test_what_moves_elements() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
            z = torch.view_as_complex(x)
            c = torch.cat([z, z.conj()], -1)[..., ::2].transpose(0, 1)
            d = torch.stack([c, c.clone()])[:, i].unsqueeze(1).expand(-1, 2, -1, -1)
            return torch.view_as_real(d), d.sum(-1).real, d.flip(0).permute(3, 0, 1, 2).imag

    check(Model(), (torch.randn(3, 5, 2), torch.tensor([1, 0, 2])))


def test_more_arithmetic() -> None:
    def z(x: torch.Tensor) -> torch.Tensor:
        return torch.complex(x, x.flip(0) - 1)

    functions = {
        "quotients": lambda x: z(x) / z(x + 2) + (z(x) * 1e25) / (z(x - 2) * 1e25) + z(x) / (x + 3),
        "reciprocal": lambda x: 1 / z(x),
        "sine": lambda x: z(x).sin() + z(x * 2).cos() * 1j,
        "hyperbolic": lambda x: z(x).sinh() + z(x * 2).cosh(),
        "tangent": lambda x: torch.cat([z(x).tanh(), z(x * 30).tanh(), z(x * 0).tanh()]),
        "logarithm": lambda x: z(x).log(),
        "power": lambda x: z(x) ** 2.5 + z(x) ** 2 + z(x).sqrt(),
        "sign": lambda x: torch.cat([z(x), torch.zeros(1, 4) * 1j]).sgn(),
        "differences": lambda x: torch.rsub(z(x), z(x) * 2) + (1 - z(x)) + (x - z(x)),
        "conjugate": lambda x: torch.complex(x, z(x).conj().imag),
        "other type": lambda x: (x.double() * (1 + 2j)).to(torch.complex64).to(torch.complex128),
    }
    reals = {
        n: lambda x, f=f: torch.view_as_real(f(x).resolve_conj()) for n, f in functions.items()
    }
    check_operators(reals, torch.randn(3, 4))


def test_convolutions() -> None:
    def parts(z: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(z)

    x, w = torch.randn(2, 3, 8, 2), torch.randn(4, 3, 3, 2)

    def of(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda x, w: parts(f(torch.view_as_complex(x), torch.view_as_complex(w)))

    check_operators(
        {
            "plain": of(lambda x, w: F.conv1d(x, w, padding=1)),
            "with a bias": of(lambda x, w: F.conv1d(x, w, w[:, 0, 0], stride=2)),
            "of one": of(lambda x, w: F.conv1d(x[0], w)),
            "of images": of(lambda x, w: F.conv2d(x[..., None], w[..., None], dilation=(2, 1))),
            "transposed": of(lambda x, w: F.conv_transpose1d(x, w.transpose(0, 1), stride=2)),
        },
        x,
        w,
    )


def test_products() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 6, dtype=torch.complex64)
            self.plain = nn.Linear(6, 2, bias=False, dtype=torch.complex64)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            z, w = torch.complex(x, y), torch.complex(y, x + y)
            three = torch.einsum("bij,bj,bkj->kj", z, w[:, 0], w)
            v, u = z[0, 0], w[0, 0]
            dots = torch.stack([torch.dot(v, u), torch.vdot(v, u), (z[0] @ u).sum()])
            added = torch.addmm(torch.outer(v[:3], u[:3]), z[0], w[1].mH)
            found = (self.plain(self.layer(z)), z @ w.mT, three, dots, added)
            return tuple(torch.view_as_real(f) for f in found)

    check(Model(), (torch.randn(2, 3, 4), torch.randn(2, 3, 4)))


def test_writes() -> None:
    def z(x: torch.Tensor) -> torch.Tensor:
        return torch.complex(x, 2 * x)

    functions = {
        "index_put": lambda x: z(x).index_put(
            (torch.tensor([2, 0]),), z(x)[:2] * 3, accumulate=True
        ),
        "index_add": lambda x: z(x).index_add(0, torch.tensor([1, 1]), z(x)[1:]),
        "masked_fill": lambda x: z(x).masked_fill(x > 0, 1 - 3j) + z(x).masked_fill(x < 0, 2),
        "where": lambda x: torch.where(x > 0, z(x), x) + torch.where(x > 0, 1.5, z(x)),
        "cat": lambda x: torch.cat([z(x), x, x[:1] + 1j]),
        "copy": lambda x: torch.zeros_like(z(x)).copy_(x) + z(x).new_full((4,), 2 + 1j),
        "filled": lambda x: torch.ones_like(z(x)) + torch.full_like(z(x), 2j) + z(x).new_ones(4),
        "select": lambda x: z(x).select_scatter(x[0] + 0j, 0, 1).slice_scatter(z(x)[:1], 0, 2),
        "parts": lambda x: torch.cat(
            [a * b for a, b in zip(z(x).unbind(0), z(x).split(1), strict=True)]
        ),
        "empty": lambda x: torch.cat([z(x)[:0], z(x)[:, 4:].sum(1)[:, None] + z(x)]),
        "constant": lambda x: x + torch.full((3, 4), 1 + 2j) + torch.tensor([1j, 2, 3, 4]),
    }
    reals = {n: lambda x, f=f: torch.view_as_real(f(x)) for n, f in functions.items()}
    check_operators(reals, torch.randn(3, 4))


def test_a_part_alone() -> None:
    """What makes only the other part of a result is not in the Program."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (torch.complex(x, x) @ torch.complex(x, -x)).real

    products = [s for s in check(Model(), (torch.randn(4, 4),)).program.body if s.combiner == "sum"]
    assert len(products) == 2


class Held(nn.Module):
    """table: "parameter", "buffer" or "updated"."""

    def __init__(self, table: str) -> None:
        super().__init__()
        self.kind = table
        made = torch.randn(4, dtype=torch.complex64)
        if table == "parameter":
            self.table = nn.Parameter(made)
        else:
            self.register_buffer("table", made)
        self.tied = self.table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "updated":
            self.table += 1
        return (x * self.table * self.tied[:1]).real


@pytest.mark.parametrize("table", ["parameter", "buffer"])
def test_parameters(table: str) -> None:
    captured = check(Held(table), (torch.randn(3, 4),))
    assert [x.dtype for x in captured.parameters.values()] == [torch.float32]


def test_what_it_does_not_do_is_refused() -> None:
    class Out(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.complex(x, x)

    class Unknown(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (
                torch.complex(x, x).acos().real + torch.complex(x, x).prod(-1, keepdim=True).abs()
            )

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = torch.complex(x, x)
            return z.index_add(0, torch.tensor([1]), z[:1], alpha=2j).real

    class Dropped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.complex(x, x).to(torch.float32) + 1

    with pytest.raises(
        MonotileError, match=r"(?s)acos.*prod.*of complex numbers.*test_complex\.py"
    ):
        capture(Unknown(), (torch.randn(3, 4),))
    for model in (Dropped(), Scaled()):
        with pytest.raises(MonotileError, match="complex number"):
            capture(model, (torch.randn(3, 4),))
    with pytest.raises(CaptureError, match="is complex"):
        capture(Out(), (torch.randn(3, 4),))
    with pytest.raises(CaptureError, match="updates table, which is complex"):
        capture(Held("updated"), (torch.randn(3, 4),))
    flat = torch.export.export(nn.Flatten(), (torch.randn(4, 4, dtype=torch.complex64),))
    with pytest.raises(CaptureError, match="argument input is complex"):
        capture(flat)


class Turned(nn.Module):
    """A rotary embedding by a table that is an argument."""

    def forward(
        self, x: torch.Tensor, *, table: torch.Tensor, scale: float = 1.0, more: object = None
    ) -> object:
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * (table * scale)[: x.shape[1]]
        return {"turned": z, "whole": table, "parts": [z.real, z.conj(), torch.fft.fft(z)]}, more


@pytest.mark.parametrize("open_", [False, True])
def test_arguments_and_results(open_: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, length = Turned(), Dim("length", max=9)
    x, more = torch.randn(2, 5, 8), torch.ones(2)
    table = torch.randn(9 if open_ else 5, 4, dtype=torch.complex64)
    shapes = {"x": {1: length}, "table": {}, "scale": None, "more": {}} if open_ else None
    given = {"more": more, "table": table, "scale": 2.0}
    fast = monotile.compile(model, (x,), given, target="cpu", dynamic_shapes=shapes)
    fast.save(tmp_path / "turned")
    again = monotile.load(tmp_path / "turned")
    for y in (x, 100 * x, torch.randn(2, 9, 8)) if open_ else (x, 100 * x):
        for one in (fast, again):
            found, wanted = one(y, **given), model(y, **given)
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
            assert found[0]["whole"] is table
    seen = table.conj().T.contiguous().T
    torch.testing.assert_close(fast(x, **given | {"table": seen})[0]["turned"], model(x, **given | {"table": seen})[0]["turned"])  # fmt: skip
    for wrong in (table[:2], table.to(torch.complex128), table.real):
        with pytest.raises(InputError, match="table: expected"):
            fast(x, **given | {"table": wrong})


def test_complex_arguments_are_updated() -> None:
    def f(z: torch.Tensor) -> torch.Tensor:
        z.mul_(2j)
        return z.abs()

    z = torch.randn(3, 4, dtype=torch.complex128)
    fast, mine, theirs = monotile.compile(f, (z.clone(),), target="cpu"), z.clone(), z.clone()
    torch.testing.assert_close(fast(mine), f(theirs))
    torch.testing.assert_close(mine, theirs)


class States(nn.Module):
    """A diagonal state space: complex states over any number of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.polar(0.4 + 0.5 * torch.rand(6), 3 * torch.rand(6)))
        self.b = nn.Parameter(torch.randn(6, 4, dtype=torch.complex64))

    def forward(self, u: torch.Tensor) -> object:
        h, found = torch.zeros(u.shape[0], 6, dtype=torch.complex64), []
        for t in range(u.shape[1]):
            h = self.a * h + u[:, t].to(torch.complex64) @ self.b.T
            found.append((h @ self.b).real)
        return torch.stack(found, 1), h


def test_states_of_loops() -> None:
    torch.manual_seed(0)
    model = States().requires_grad_(False)
    shapes = {"u": {1: Dim("length", max=9)}}
    fast = monotile.compile(model, (torch.randn(2, 5, 4),), target="cpu", dynamic_shapes=shapes)
    for n in (5, 9, 1):
        u = torch.randn(2, n, 4)
        torch.testing.assert_close(fast(u), model(u))


def test_states_of_branches() -> None:
    def f(z: torch.Tensor) -> object:
        z = z * 2 if z.abs().sum() > 10 else z.conj() + 1j
        for k in range(5):
            z = z * (0.5 + 0.5j)
            if z.abs().max() < 0.4:
                return z, k
        while z.abs().max() > 0.2:
            z = z * (0.7 + 0.2j)
        return z, -1

    z = torch.randn(3, 4, dtype=torch.complex64)
    fast = monotile.compile(f, (z,), target="cpu")
    for scale in (1, 9, 0.1):
        torch.testing.assert_close(fast(z * scale), f(z * scale))


@pytest.mark.filterwarnings("ignore:.*Complex")
def test_buffers_that_are_conjugates() -> None:
    """Views whose numbers PyTorch negates as they are read."""
    z = torch.randn(3, 4, dtype=torch.complex64)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("turned", z.conj())
            self.register_buffer("part", z.conj().imag, persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (self.get_buffer("turned") * 1j).real - self.get_buffer("part")

    model, x = Model(), torch.randn(3, 4)
    torch.testing.assert_close(monotile.compile(model, (x,), target="cpu")(x), model(x))
